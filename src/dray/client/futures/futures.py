"""Results to come, as `concurrent.futures` knows them: every tool that takes such a future takes these.

Surprising rule: a future makes its lock when somebody first waits on it. Most never see a waiter, and a hundred
thousand locks would be most of the memory of a client with as many calls. That holds together because the state is set
under one lock for all (`_guard`), under which the own lock is also made: whoever makes it later sees the state.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dray.client.display.html import draw_job
from dray.client.display.live import Picture, Shown
from dray.client.futures.bell import Bell
from dray.client.futures.pausing import Waiters, is_in_task, pause_until, pausing
from dray.client.futures.status import Status
from dray.core.model.records.records import JobState
from dray.functions.values import Part, Pledge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")
_PENDING, _CANCELLED, _NOTIFIED, _FINISHED = (
    "PENDING",
    "CANCELLED",
    "CANCELLED_AND_NOTIFIED",
    "FINISHED",
)
_guard = threading.RLock()
# Lines of output that a picture asks for.
TAIL = 8
logger = logging.getLogger("dray.client")


class LazyFuture(concurrent.futures.Future[T]):
    """A future that is filled by dray; its values may still be packed until somebody asks for them."""

    _waiters: list[Any]

    def __init__(self) -> None:
        # Not the base's, which makes a lock.
        self._state = _PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._done_callbacks: list[Callable[[Any], Any]] = []

    @property
    def _condition(self) -> Any:  # a `Bell`, which can all that the base does with its own
        found: Bell | None = self.__dict__.get("_lock")
        if found is None:
            fresh = Bell()
            with _guard:
                found = self.__dict__.setdefault("_lock", fresh)
                self.__dict__.setdefault("_waiters", Waiters())
            self._begin()
        return found

    @_condition.setter
    def _condition(self, lock: Any) -> None:
        self.__dict__["_lock"] = lock
        self.__dict__.setdefault("_waiters", Waiters())

    def _begin(self) -> None:
        """Somebody is about to wait; called without any lock held."""

    # --- filled from dray's side --------------------------------------------------------------------------------------

    def _fill(self, value: Any) -> bool:
        """End well; `value` is a packed value (`PackedResult`) or the thing itself. False where it had ended."""
        with _guard:
            if self._state != _PENDING:
                return False
            self._result = value
            self._state = _FINISHED
            lock = self.__dict__.get("_lock")
        self._announce(lock, "add_result")
        return True

    def _break(self, fault: BaseException) -> bool:
        """End badly. False where it had ended."""
        with _guard:
            if self._state != _PENDING:
                return False
            self._exception = fault
            self._state = _FINISHED
            lock = self.__dict__.get("_lock")
        self._announce(lock, "add_exception")
        return True

    def _drop(self) -> bool:
        """End as cancelled. False where it had ended."""
        with _guard:
            if self._state != _PENDING:
                return False
            self._state = _NOTIFIED
            lock = self.__dict__.get("_lock")
        self._announce(lock, "add_cancelled")
        return True

    def _announce(self, lock: Bell | None, word: str) -> None:
        if lock is not None:
            with lock:
                for waiter in self._waiters:
                    getattr(waiter, word)(self)
                lock.notify_all()
        if self._done_callbacks:
            _callbacks.run(self._invoke_callbacks)  # type: ignore[attr-defined]  # of the base, in every version

    def set_result(self, result: T) -> None:
        """Only for tools that fill futures themselves; those of dray are filled by the hub."""
        if not self._fill(result):
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")

    def set_exception(self, exception: BaseException | None) -> None:
        if exception is None or not self._break(exception):
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")

    # --- asked from the caller's side ---------------------------------------------------------------------------------

    def cancelled(self) -> bool:
        return self._state in (_CANCELLED, _NOTIFIED)

    def done(self) -> bool:
        if self._state != _PENDING:
            return True
        self._condition  # noqa: B018 - looking makes it listen
        return self._state != _PENDING

    def result(self, timeout: float | None = None) -> T:
        """The value, or the exception that the function raised. Raises `TimeoutError`; the call goes on."""
        self._await_end(timeout)
        if self._state != _FINISHED:
            raise CancelledError(f"{self!r} was cancelled")
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                # Without this the exception's traceback and this frame would keep each other alive.
                self = None  # type: ignore[assignment]  # noqa: PLW0642 - the reason stands above
        return self._open()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that the function raised, or None."""
        self._await_end(timeout)
        if self._state != _FINISHED:
            raise CancelledError(f"{self!r} was cancelled")
        if self._exception is None:
            try:
                self._open()
            except Exception as fault:  # noqa: BLE001 - a result that cannot be unpacked here is a failure
                return fault
        return self._exception

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Have a function called at the end, in a thread for such; at once where it has ended."""
        if getattr(fn, "__module__", "") == asyncio.futures.__name__ and is_in_task():
            # `asyncio.wrap_future`, and with it `run_in_executor`: this is how an event loop waits.
            with contextlib.suppress(RuntimeError):  # no loop runs here: somebody prepares for one
                self._handing_on = asyncio.get_running_loop().create_task(self._hand_on(fn))
                return
        super().add_done_callback(fn)

    async def _hand_on(self, fn: Callable[[Any], object]) -> None:
        await pause_until(_Wake.on(self))
        super().add_done_callback(fn)

    def ends_within(self, timeout: float | None) -> bool:
        """Wait for the end without asking how it ended; whether it came in time."""
        if self._state != _PENDING:
            return True
        bell = self._condition
        with pausing(timeout) as spells:
            return any(bell.wait_for(self._look, spell_s) for spell_s in spells)

    def _await_end(self, timeout: float | None) -> None:
        if not self.ends_within(timeout):
            raise TimeoutError(f"{self!r} has not ended within {timeout or 0:g} s; it goes on")

    def _look(self) -> bool | None:
        return self._state != _PENDING or None

    def _open(self) -> T:
        value = self._result
        if type(value) is PackedResult:
            value = self._result = value.open()
        return value  # type: ignore[no-any-return]  # whatever the function gave

    def __await__(self) -> Generator[Any, None, T]:
        if self._state == _PENDING:
            yield from pause_until(_Wake.on(self)).__await__()
        return self.result(0)


class _Wake:
    """Wakes an event loop at the end of a future. Not a callback: those wait their turn in a thread of their own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.woken = loop, loop.create_future()

    @classmethod
    def on(cls, future: LazyFuture[Any]) -> asyncio.Future[None]:
        wake = cls(asyncio.get_running_loop())
        with future._condition:
            if future._state == _PENDING:
                future._waiters.append(wake)
            else:
                wake.woken.set_result(None)
        return wake.woken

    def add_result(self, _: Any) -> None:
        with contextlib.suppress(RuntimeError):  # that loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._wake)

    add_exception = add_cancelled = add_result

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class _Callbacks:
    """A thread for what callers hang on futures: it may take its time, or ask dray for more, which the loop may not."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = 0
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, work: Callable[[], None]) -> None:
        """Takes no lock once the thread is there: the garbage collector calls this, in the middle of anything."""
        if self._pid != os.getpid():
            self._start()
        self._queue.put(work)

    def _start(self) -> None:
        with self._lock:
            if self._pid != os.getpid():
                # In this order: whoever sees the pid must find the queue that belongs to it.
                self._queue = queue.SimpleQueue()
                self._pid = os.getpid()
                threading.Thread(
                    target=self._serve, args=(self._queue,), name="dray-callbacks", daemon=True
                ).start()

    @staticmethod
    def _serve(waiting: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                waiting.get()()
            except Exception:
                logger.exception("something that was to happen after a call has failed")


_callbacks = _Callbacks()


def run_later(work: Callable[[], None]) -> None:
    """Do something in the thread of callbacks: for finalizers, which must wait for nothing where they are called."""
    _callbacks.run(work)


def read_text(pieces: Iterator[bytes]) -> str:
    """Output as text, for people; bytes that are none are shown as such."""
    return b"".join(pieces).decode(errors="replace")


class PackedResult:
    """A result that nobody has looked at yet."""

    __slots__ = ("_open", "data")

    def __init__(self, data: Part, open_value: Callable[[Part], Any]) -> None:
        self.data, self._open = data, open_value

    def open(self) -> Any:
        """The value."""
        return self._open(self.data)


class Place(Protocol):
    """The array that a call went into."""

    name: str
    job: str
    numbered: bool
    recorded: int
    closed: bool
    answers: set[asyncio.Future[Any]]


class Desk(Protocol):
    """Whom a future asks about its call."""

    def await_recorded(self, future: CallFuture[Any]) -> None: ...
    def ask_state(self, future: CallFuture[Any]) -> JobState: ...
    def ask_status(self, future: CallFuture[Any]) -> Status: ...
    def ask_why(self, future: CallFuture[Any]) -> dict[str, Any]: ...
    def read_logs(self, task_id: str, follow: bool, wanted: Mapping[str, Any]) -> Iterator[bytes]: ...
    def ask_cancel(self, future: CallFuture[Any]) -> bool: ...


class CallFuture(LazyFuture[T], Shown, Pledge):
    """One call of a function. As an argument of another call it stands for its result."""

    def __init__(self, desk: Desk, stream: Place, index: int) -> None:
        super().__init__()
        self._desk, self._stream, self._index = desk, stream, index
        self.lease: object = None
        self._final: JobState | None = None

    def __repr__(self) -> str:
        told = (
            self._final.value if self._final is not None else "cancelled" if self.cancelled() else "pending"
        )
        return f"<Future {self._stream.name}() {self._name()} {told}>"

    def _picture(self) -> Picture:
        status = self.status()
        waits = status.state is JobState.PENDING
        output = "" if waits else read_text(self.logs(tail=TAIL))
        document = {"name": self._stream.name, **status}
        return Picture(draw_job(document, self.why() if waits else None, output), not status.state.final)

    def _name(self) -> str:
        return f"{self._stream.job}/{self._index}" if self._stream.numbered else self._stream.job

    @property
    def id(self) -> str:
        """The id of its task, once the hub has recorded it."""
        self._desk.await_recorded(self)
        return self._name()

    def pledge(self) -> str:
        return self.id

    @property
    def state(self) -> JobState:
        """How it stands now; the hub is asked unless it has ended."""
        return self._final if self._final is not None else self._desk.ask_state(self)

    def status(self) -> Status:
        """How it stands, as a value."""
        return self._desk.ask_status(self)

    def running(self) -> bool:
        """Whether it runs at this moment, as far as the hub knows."""
        return not self.done() and self.state is JobState.RUNNING

    def why(self) -> dict[str, Any]:
        """Why it waits: state, summary, blockers, workers, fix."""
        return self._desk.ask_why(self)

    def logs(self, follow: bool = False, **wanted: Any) -> Iterator[bytes]:
        """Its output, piece by piece; keywords `attempt`, `stream`, `tail`."""
        return self._desk.read_logs(self.id, follow, wanted)

    def cancel(self) -> bool:
        """Stop it, also where it runs already; False where it had ended before."""
        if self._state != _PENDING:
            return self.cancelled()
        if not self._desk.ask_cancel(self):
            return False
        self._final = JobState.KILLED
        return self._drop() or self.cancelled()

    def settle(self, state: str, value: Any, fault: BaseException | None) -> None:
        """Take the recorded end of the call."""
        self._final = JobState(state)
        if fault is None:
            self._fill(value)
        elif self._final is JobState.KILLED and getattr(fault, "exit_class", "") in ("", "cancelled", "user"):
            self._drop()
        else:
            self._break(fault)
