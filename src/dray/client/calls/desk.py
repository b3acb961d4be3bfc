"""Calls on their way to the hub and their results on the way back: open arrays, one per recipe, extended as calls come.

Callers in any thread put calls in; everything else happens in the client's loop. There is one wake-up per burst: what
was put in meanwhile leaves together, and while two messages of one array are unanswered the rest waits and grows into
larger ones, so that the hub's own pace makes the batches. Results are handed over frame by frame. Surprising rule: an
array that the hub has closed meanwhile is replaced by a new one without anybody noticing, since an id is given out only
after the hub has recorded it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dray.client.calls.inquiries import AGAIN_S, Inquiries
from dray.client.calls.large_values import Blobs, LateResult, Upload
from dray.client.calls.open_arrays import Argument, Ending, Stream, Taker, Takers, draw_id, name_by
from dray.client.futures.bell import Bell
from dray.client.futures.futures import CallFuture, PackedResult
from dray.core.model.records.records import JobState
from dray.errors import Conflict, DrayError, NotFound
from dray.functions.failures import CallFailed
from dray.functions.values import Packed

if TYPE_CHECKING:
    from dray.client.calls.recipes import Recipe
    from dray.client.reach.channel import Channel

MESSAGE_CALLS, MESSAGE_BYTES = 1024, 256 << 10
IN_FLIGHT = 2
IDLE_S = 40.0
GOODBYE_S = 1.0
PAGE = 1000


class CallDesk(Inquiries):
    """All calls of one client. Made in the loop that it lives in."""

    def __init__(self, channel: Channel, blobs: Blobs, read_logs: Callable[..., Iterator[bytes]]) -> None:
        self._lock = Bell()
        super().__init__(channel, read_logs, self._lock)
        self._blobs = blobs
        self._open: dict[Any, Stream] = {}
        self._streams: dict[str, Stream] = {}
        self._dirty: list[Stream] = []
        self._awake = False
        channel.listen(self._pushed, self.resume, self.fail)

    # --- from any thread ----------------------------------------------------------------------------------------------

    def submit(self, recipe: Recipe, packed: Packed, key: str = "", limit: int = 0) -> CallFuture[Any]:
        """Put one call in. Blocks only where a large argument waits for its turn to be uploaded."""
        argument = self._blobs.offer(packed)
        if recipe.sealed.blob is not None:
            self._blobs.send(recipe.sealed.blob)
        with self._lock:
            stream = None if recipe.alone else self._open.get(recipe.key)
            if stream is None or stream.closed or self._is_old(stream):
                stream = self._begin(recipe, Takers(), draw_id() if not key else name_by(key), 0, limit)
                if not recipe.alone:
                    self._open[recipe.key] = stream
            assert isinstance(stream.taker, Takers)  # made above, or by an earlier call of the same recipe
            future: CallFuture[Any] = CallFuture(self, stream, stream.put)
            stream.taker.futures[stream.base + stream.put] = future
            wake = self._put(stream, argument)
        if wake:
            self._loop.call_soon_threadsafe(self._flush)
        return future

    def begin(self, recipe: Recipe, taker: Taker, limit: int = 0, base: int = 0) -> Stream:
        """Begin an array of its own, for calls that `extend` puts in; `base` is the position of the first of them."""
        if recipe.sealed.blob is not None:
            self._blobs.send(recipe.sealed.blob)
        with self._lock:
            return self._begin(recipe, taker, draw_id(), base, limit)

    def extend(self, stream: Stream, packed: Sequence[Packed], close: bool = False) -> Stream:
        """Put several calls in; gives the stream to go on with, which is another one after a break by the hub."""
        arguments = [self._blobs.offer(one) for one in packed]
        with self._lock:
            while stream.closed and (packed or stream.successor is not None):
                stream = stream.successor or self._succeed(stream, stream.put)
            stream.closing = stream.closing or close
            wake = False
            for argument in arguments:
                wake = self._put(stream, argument) or wake
            wake = self._mark(stream) or wake
        if wake:
            self._loop.call_soon_threadsafe(self._flush)
        return stream

    def await_all_recorded(self, taker: Taker) -> None:
        """Wait until the hub has recorded all calls that somebody has put in, or refused them."""
        while not self._lock.wait_for(lambda: self._are_all_recorded(taker) or None, AGAIN_S):
            pass

    def _are_all_recorded(self, taker: Taker) -> bool:
        return all(
            stream.recorded >= stream.put or stream.closed
            for stream in list(self._streams.values())
            if stream.taker is taker
        )

    def close_stream(self, stream: Stream) -> None:
        """Say that no further calls come. From any thread."""
        self.extend(stream, (), close=True)

    def close_owner(self, owner: Any) -> None:
        """Say of all arrays of one owner that no further calls come. From any thread."""
        with self._lock:
            streams = [stream for stream in self._open.values() if stream.recipe.key[-1] == owner]
            for stream in streams:
                del self._open[stream.recipe.key]
        for stream in streams:
            self.close_stream(stream)

    def cancel_all(self, taker: Taker) -> None:
        """Stop all calls that somebody has put in, without waiting for it. From any thread."""
        for stream in [one for one in list(self._streams.values()) if one.taker is taker]:
            with self._lock:
                stream.closed = True
                first, rest, stream.pending = stream.base + stream.sent, stream.pending, []
                unsent = [
                    stream.uploads.pop(at) for at in range(stream.sent, stream.put) if at in stream.uploads
                ]
            for upload in unsent:
                upload.add_done_callback(functools.partial(self._let_go, upload))
            gone = CallFailed(
                f"{stream.name}() of {stream.job}: cancelled", "cancelled", "killed", stream.job
            )
            taker.fail(range(first, first + len(rest)), gone)
            self._loop.call_soon_threadsafe(self._spawn, self._cancel_quietly, stream.job)

    def _let_go(self, upload: Upload, _: Any) -> None:
        self._blobs.release(upload)

    def _is_old(self, stream: Stream) -> bool:
        """Whether the hub may be about to close it: it does so after a minute without calls."""
        return stream.put == stream.recorded and time.monotonic() - stream.used_at > IDLE_S

    def _begin(self, recipe: Recipe, taker: Taker, job: str, base: int, limit: int) -> Stream:
        stream = self._streams[job] = Stream(recipe, taker, job, base, limit)
        return stream

    def _succeed(self, stream: Stream, start: int) -> Stream:
        """Begin the array that takes over from one that is closed, with what was its call `start`."""
        base = stream.base + start
        stream.successor = self._begin(stream.recipe, stream.taker, draw_id(), base, stream.limit)
        return stream.successor

    def _put(self, stream: Stream, argument: Argument) -> bool:
        stream.pending.append(argument)
        if type(argument) is Upload:
            stream.uploads[stream.put] = argument
        stream.put += 1
        return self._mark(stream)

    def _mark(self, stream: Stream) -> bool:
        """Note that a stream has something to send; whether the loop must be woken for it."""
        if not stream.dirty:
            stream.dirty = True
            self._dirty.append(stream)
        if self._awake:
            return False
        self._awake = True
        return True

    # --- in the loop: out ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        with self._lock:
            dirty, self._dirty, self._awake = self._dirty, [], False
            for stream in dirty:
                stream.dirty = False
        for stream in dirty:
            self._send(stream)
        self._channel.flush()

    def _send(self, stream: Stream) -> None:
        while not stream.closed and not stream.halted and len(stream.unanswered) < IN_FLIGHT:
            with self._lock:
                first, batch = stream.sent, self._take_batch(stream)
                last = stream.closing and not stream.pending and not stream.over
                if not batch and not last:
                    return
                stream.sent += len(batch)
                stream.over = last
                stream.used_at = time.monotonic()
                stream.unanswered[first] = batch
            self._post(stream, first, batch, last)

    def _take_batch(self, stream: Stream) -> list[Argument]:
        count, size = 0, 0
        for argument in stream.pending[:MESSAGE_CALLS]:
            if isinstance(argument, Upload):
                if not argument.done():
                    argument.add_done_callback(lambda _: self._wake_for(stream))
                    break
                size += 80
            else:
                size += len(argument)
            if count and size > MESSAGE_BYTES:
                break
            count += 1
        batch, stream.pending = stream.pending[:count], stream.pending[count:]
        return batch

    def _wake_for(self, stream: Stream) -> None:
        with self._lock:
            wake = self._mark(stream)
        if wake:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._flush)

    def _post(self, stream: Stream, first: int, batch: list[Argument], last: bool) -> None:
        try:
            answer = self._channel.post("calls", self._payload(stream, first, batch, last))
        except DrayError as fault:
            # An upload that failed, a message that is too large, or a channel that has ended for good.
            self._refused(stream, first, fault)
            return
        stream.answers.add(answer)
        answer.add_done_callback(lambda done: self._took_answer(stream, first, last, done))

    def _payload(self, stream: Stream, first: int, batch: list[Argument], last: bool) -> dict[str, Any]:
        args = [one.result() if isinstance(one, Upload) else one for one in batch]
        payload: dict[str, Any] = {"job": stream.job, "first": first, "args": args}
        if first == 0:
            payload["spec"] = stream.spec()
            if stream.recipe.sealed.blob is not None:
                payload["blobs"] = [stream.recipe.sealed.digest]
        if last:
            payload["close"] = True
        return payload

    def _took_answer(self, stream: Stream, first: int, last: bool, answer: asyncio.Future[Any]) -> None:
        stream.answers.discard(answer)
        if answer.cancelled():
            return
        fault = answer.exception()
        if isinstance(fault, Conflict) and fault.code == "closed" and not stream.closed:
            self._reopen(stream, first)
            return
        if fault is not None:
            if _came_too_early(stream, first, fault):
                stream.early.append((first, last))
            else:
                self._refused(stream, first, fault)
            return
        state = str(answer.result().get("state", ""))
        batch = stream.unanswered.pop(first)
        early, stream.early = stream.early, []
        for at, closes in sorted(early):
            self._post(stream, at, stream.unanswered[at], closes)
        with self._lock:
            stream.recorded = max(stream.recorded, first + len(batch))
            self._lock.notify_all()
        final = bool(state) and JobState(state).final
        if final and int(answer.result().get("total", stream.recorded)) < stream.recorded:
            # It ended as it was made, before it took any calls: what it waited for had failed.
            self._spawn(self._conclude_unbegun, stream)
        elif stream.resent or final:
            stream.resent = bool(stream.unanswered)
            self._gather(stream)
        if stream.over and not stream.unanswered:
            self._forget_ended(stream)
        self._send(stream)

    def _reopen(self, stream: Stream, first: int) -> None:
        """The hub has closed the array: what it refused goes into a new one, in the same order."""
        stream.halted = True
        stream.refuse(first)
        if stream.unanswered:
            return
        with self._lock:
            refused = sorted(stream.refused, key=lambda item: item[0])
            arguments = [one for _, batch in refused for one in batch] + stream.pending
            start = refused[0][0]
            fresh = self._succeed(stream, start)
            stream.closed = True
            fresh.pending, fresh.put = arguments, len(arguments)
            fresh.uploads = {at: one for at, one in enumerate(arguments) if type(one) is Upload}
            stream.uploads = {at: one for at, one in stream.uploads.items() if at < start}
            fresh.closing = stream.closing
            stream.pending, stream.put = [], start
            if self._open.get(stream.recipe.key) is stream:
                self._open[stream.recipe.key] = fresh
            if isinstance(stream.taker, Takers):
                for place, future in stream.taker.futures.items():
                    if place >= fresh.base:
                        future._stream, future._index = fresh, place - fresh.base
        self._send(fresh)

    def _refused(self, stream: Stream, first: int, fault: BaseException) -> None:
        # The first tells why; what was under way behind it is only refused because that was.
        fault = stream.refusal = stream.refusal or fault
        stream.refuse(first)
        with self._lock:
            if self._open.get(stream.recipe.key) is stream:
                del self._open[stream.recipe.key]
            stream.closed = True
            rest, stream.pending = stream.pending, []
        for start, batch in stream.refused:
            stream.taker.fail(range(stream.base + start, stream.base + start + len(batch)), fault)
            self._release(stream, range(start, start + len(batch)))
        stream.refused = []
        stream.taker.fail(range(stream.base + stream.sent, stream.base + stream.sent + len(rest)), fault)
        self._release(stream, range(stream.sent, stream.sent + len(rest)))
        with self._lock:
            self._lock.notify_all()

    # --- in the loop: back --------------------------------------------------------------------------------------------

    def _pushed(self, kind: str, payload: dict[str, Any]) -> None:
        stream = self._streams.get(payload["job"])
        if stream is None:
            return
        if kind == "results":
            self._hand_over(stream, payload)
        else:
            self._spawn(self._conclude, stream, payload)

    def _hand_over(self, stream: Stream, columns: dict[str, Any]) -> None:
        index, values, states = columns["index"], columns["value"], columns["state"]
        details = columns.get("details") or {}
        base = stream.base
        if isinstance(states, str):
            states = [states] * len(index)
        places: list[int] = []
        endings: list[Ending] = []
        if stream.uploads:
            self._release(stream, index)
        late, opened = stream.taker.late, self._blobs.opener.value
        for at, state, value in zip(index, states, values, strict=True):
            if type(value) is list or type(value) is tuple:
                # What is collected after a break, or at the end, may have been pushed before.
                if base + at in stream.fetching or not stream.taker.wants(base + at):
                    continue
                if late and state == "succeeded":
                    places.append(base + at)
                    endings.append((state, LateResult(self._blobs, *value), None))
                    continue
                stream.fetching.add(base + at)
                self._blobs.fetch(value[0], value[1], self._fetched(stream, base + at, state, at, details))
                continue
            places.append(base + at)
            if state == "succeeded" and value is not None:
                endings.append((state, PackedResult(value, opened), None))
            else:
                endings.append(self._end(stream, at, state, value, details))
        stream.taker.take(places, endings)

    def _release(self, stream: Stream, indices: Iterable[int]) -> None:
        """These calls need their large arguments no longer."""
        for index in indices:
            if (upload := stream.uploads.pop(index, None)) is not None:
                self._blobs.release(upload)

    def _fetched(
        self, stream: Stream, place: int, state: str, index: int, details: Mapping[str, Any]
    ) -> Callable[[Any], None]:
        def take(got: Any) -> None:
            if isinstance(got, BaseException):
                ending: Ending = ("failed", None, got)
            elif state == "succeeded":
                ending = (state, PackedResult(got, self._blobs.opener.value), None)
            else:
                ending = self._end(stream, index, state, got, details)
            stream.taker.take((place,), (ending,))
            stream.fetching.discard(place)

        return take

    def _end(self, stream: Stream, index: int, state: str, value: Any, details: Mapping[str, Any]) -> Ending:
        exit_class, error = (*(details.get(str(index)) or ()), "", "")[:2]
        task_id = f"{stream.job}/{index}" if stream.numbered else stream.job
        if state == "succeeded":
            return state, None, None
        if value is not None and exit_class in ("raised", ""):
            with contextlib.suppress(Exception):
                return state, None, self._blobs.opener.failure(value, task_id)
        words = error or f"ended as {state}"
        return state, None, CallFailed(f"{stream.name}() of {task_id}: {words}", exit_class, state, task_id)

    async def _conclude(self, stream: Stream, ended: dict[str, Any]) -> None:
        """A job has ended: whatever has no result by then has none."""
        await self._gather_all(stream)
        state, exit_class = str(ended.get("state", "")), str(ended.get("exit_class") or "")
        words = ended.get("error") or f"the job ended as {state}"
        with self._lock:
            if self._open.get(stream.recipe.key) is stream:
                del self._open[stream.recipe.key]
        if stream.unanswered or stream.pending:
            # Not all of its calls were recorded: the hub's refusal of those will open another one.
            return
        stream.closed = True
        fault = CallFailed(f"{stream.name}() of {stream.job}: {words}", exit_class, state, stream.job)
        lacking = stream.taker.lacking(stream.base, stream.base + stream.put)
        lacking = [place for place in lacking if place not in stream.fetching]
        final = "failed" if state == "succeeded" else state
        stream.taker.take(lacking, [(final, None, fault)] * len(lacking))
        self._release(stream, list(stream.uploads))
        self._streams.pop(stream.job, None)

    async def _conclude_unbegun(self, stream: Stream) -> None:
        jobs = (await self._channel.ask("get", {"ids": [stream.job]}))["jobs"]
        found = jobs[0] if jobs else {"state": "killed"}
        await self._conclude(stream, {**found, "exit_class": found.get("exit_class") or "dependency"})

    def _forget_ended(self, stream: Stream) -> None:
        if stream.taker.missing() is None:
            self._streams.pop(stream.job, None)

    def _gather(self, stream: Stream) -> None:
        stream.again = stream.gathering
        if not stream.gathering:
            self._spawn(self._gather_all, stream)

    async def _gather_all(self, stream: Stream) -> None:
        """Ask for results that were pushed to nobody: those of before a break, or of an earlier program."""
        stream.gathering = True
        try:
            stream.again = True
            while stream.again:
                # A break in the middle may have swallowed what was asked about before it.
                stream.again = False
                missing = stream.taker.missing()
                first = None if missing is None else max(0, missing - stream.base)
                while first is not None and first < max(stream.recorded, 1):
                    wanted = {"job": stream.job, "first": first, "limit": PAGE}
                    answer = await self._channel.ask("collect", wanted)
                    self._hand_over(stream, answer)
                    first = answer["next"]
        finally:
            stream.gathering = False

    def resume(self) -> None:
        """A new session: the hub has forgotten who listens."""
        for stream in list(self._streams.values()):
            stream.resent = bool(stream.unanswered)
            if stream.recorded and stream.taker.missing() is not None:
                self._gather(stream)

    def fail(self, fault: DrayError) -> None:
        """Nothing more will come of what was put in. Further calls go into other arrays, where the channel goes on."""
        for stream in list(self._streams.values()):
            stream.closed = True
            stream.taker.fail(None, fault)
        with self._lock:
            self._streams.clear()
            self._open.clear()
            self._lock.notify_all()

    async def settle(self) -> None:
        """Have the hub record all calls that were put in, and let open arrays end: no further calls come.

        Waits for as long as the hub answers, and not at all where it is away.
        """
        with self._lock:
            self._open.clear()
            streams = list(self._streams.values())
            for stream in streams:
                stream.closing = stream.closing or stream.numbered
        for stream in streams:
            self._send(stream)
        while self._channel.connected:
            streams = list(self._streams.values())
            answers = [answer for stream in streams for answer in stream.answers]
            first = [stream.pending[0] for stream in streams if stream.pending and not stream.closed]
            # These have their own limits of time.
            uploads = [asyncio.wrap_future(one) for one in first if isinstance(one, Upload)]
            # Among others a cancel that nobody waits for.
            waiting = [*answers, *uploads, *self._tasks]
            if not waiting:
                return
            waited_for = asyncio.wait(waiting, timeout=GOODBYE_S, return_when="FIRST_COMPLETED")
            if not (await waited_for)[0] and not uploads:
                return

    async def close(self) -> None:
        """End it all; what is recorded goes on."""
        await self.settle()
        self._blobs.close()
        for task in self._tasks:
            task.cancel()


def _came_too_early(stream: Stream, first: int, fault: BaseException) -> bool:
    """Whether a batch was refused only because the hub has put off one ahead of it, which is on its way again."""
    codes = (Conflict.code, NotFound.code)
    return isinstance(fault, DrayError) and fault.code in codes and next(iter(stream.unanswered)) < first
