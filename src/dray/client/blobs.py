"""Large values, over HTTP beside the channel: uploaded and fetched by a few threads, each content once.

A value of up to 64 KiB travels inside its message. Of a larger one a copy is taken when it is offered, so that the
caller may go on writing to its arrays; one too large to copy is sent before `offer` returns. Surprising rule: offering
blocks while too much waits to be sent, which is what keeps a loop over large arguments from filling the memory.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dray.client.discovery import Target
from dray.errors import DrayError, HubUnavailable
from dray.functions.values import Packed, Part

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from dray.client.blob_line import BlobLine

THREADS = 4
WAITING_BYTES = 256 << 20
COPIED_BYTES = 64 << 20
TRUSTED_S = 30.0
REMEMBERED = 4096
ASK_LIMIT_BYTES = 256 << 20
TRIES = 3


class Upload(concurrent.futures.Future[tuple[str, int]]):
    """A value on its way; gives its digest and size once the hub has it."""

    def __init__(self, digest: str, size: int) -> None:
        super().__init__()
        self.digest, self.size = digest, size
        self.ended_at = float("inf")


class Blobs:
    """The blobs of one hub. Safe to use from several threads."""

    def __init__(self, find: Callable[[], Target], wake: Callable[..., Any]) -> None:
        self._find, self._wake = find, wake
        self._room = threading.Condition()
        self._waiting_bytes = 0
        self._known: dict[str, Upload] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._lines: weakref.WeakSet[BlobLine] = weakref.WeakSet()

    def offer(self, packed: Packed) -> bytes | Upload:
        """The bytes of a small value; of a large one its upload, begun or shared with whoever offered it before."""
        if packed.inline:
            return packed.join()
        if packed.size > ASK_LIMIT_BYTES:
            # Before it is hashed, which takes longer than anybody likes to wait for a refusal.
            self._try(lambda line: line.check_size(packed.size))
        digest = packed.digest()
        with self._room:
            known = self._known.get(digest)
            if known is not None and time.monotonic() - known.ended_at < TRUSTED_S and not _failed(known):
                return known
            upload = self._remember(Upload(digest, packed.size))
        if packed.size > COPIED_BYTES:
            self._carry(upload, packed.parts, known is not None)
        else:
            self._wait_for_room(packed.size)
            data = packed.join()
            self._threads().submit(self._carry_later, upload, data, known is not None)
        return upload

    def send(self, packed: Packed) -> None:
        """Upload a large value and wait until the hub has it."""
        upload = self.offer(packed)
        if isinstance(upload, Upload):
            upload.result()

    def fetch(self, digest: str, size: int, done: Callable[[Any], None]) -> None:
        """Fetch a blob; `done` is called in the client's loop with its bytes, or with what went wrong."""
        self._threads().submit(self._bring, digest, size, done)

    def read(self, digest: str, size: int) -> bytearray:
        """Fetch a blob here and now."""
        data: bytearray = self._try(lambda line: line.get(digest, size))
        return data

    def close(self) -> None:
        """Give up what has not begun."""
        with self._room:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        for line in list(self._lines):
            line.close()

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _remember(self, upload: Upload) -> Upload:
        if len(self._known) >= REMEMBERED:
            for digest in [name for name, one in self._known.items() if one.done()][: REMEMBERED // 2]:
                del self._known[digest]
        self._known[upload.digest] = upload
        return upload

    def _wait_for_room(self, size: int) -> None:
        with self._room:
            while self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES:
                self._room.wait()
            self._waiting_bytes += size

    def _threads(self) -> ThreadPoolExecutor:
        with self._room:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(THREADS, "dray-blobs")
            return self._pool

    def _carry_later(self, upload: Upload, data: bytes, ask_first: bool) -> None:
        try:
            self._carry(upload, (data,), ask_first)
        finally:
            with self._room:
                self._waiting_bytes -= len(data)
                self._room.notify_all()

    def _carry(self, upload: Upload, parts: Sequence[Part], ask_first: bool) -> None:
        try:
            self._try(lambda line: line.put(upload.digest, parts, upload.size, ask_first))
        except BaseException as fault:  # noqa: BLE001 - whoever waits for the upload hears of it
            upload.ended_at = time.monotonic()
            upload.set_exception(fault)
            return
        upload.ended_at = time.monotonic()
        upload.set_result((upload.digest, upload.size))

    def _bring(self, digest: str, size: int, done: Callable[[Any], None]) -> None:
        got: Any
        try:
            got = self._try(lambda line: line.get(digest, size))
        except BaseException as fault:  # noqa: BLE001 - handed to whoever asked
            got = fault
        try:
            self._wake(done, got)
        except RuntimeError:
            return  # the loop has ended: nobody waits any more

    def _try(self, work: Callable[[BlobLine], Any]) -> Any:
        """Do something over this thread's own line; a line that broke is opened again."""
        from dray.client.blob_line import BlobLine, Broken  # here: HTTP loads half of the mail package

        for left in range(TRIES - 1, -1, -1):
            line: BlobLine | None = getattr(self._own, "line", None)
            fresh = line is None
            try:
                if line is None:
                    line = self._own.line = BlobLine(self._find())
                    self._lines.add(line)
                return work(line)
            except Broken as fault:
                self._own.line = None
                if line is not None:
                    line.close()
                if left == 0:
                    raise HubUnavailable(f"a large value did not get through: {fault}") from fault
                if fresh:
                    time.sleep(0.2)
            except DrayError:
                self._own.line = None
                if line is not None:
                    line.close()
                raise
        return None


def _failed(upload: Upload) -> bool:
    return upload.done() and upload.exception() is not None
