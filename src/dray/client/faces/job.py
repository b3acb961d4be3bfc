"""A job by its id, from the blocking side: a future of its end, and everything that can be asked about it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from dray.client.display.html import draw_job
from dray.client.display.live import Picture, Shown
from dray.client.futures.futures import TAIL, LazyFuture, read_text
from dray.client.futures.status import Status
from dray.core.model.records.records import JobState
from dray.functions.failures import CallFailed

if TYPE_CHECKING:
    from dray.client.faces.hub import Hub


class Job(LazyFuture[Any], Shown):
    """One submitted job. Its result is what its function gave, or the status in which its command ended well."""

    def __init__(self, hub: Hub, job_id: str, state: str = "", created: bool = True) -> None:
        super().__init__()
        self._hub, self.id, self.created = hub, job_id, created
        self._last = state

    def __repr__(self) -> str:
        return f"Job(id={self.id!r})"

    def _picture(self) -> Picture:
        if self._hub.closed:
            raise RuntimeError("its hub was closed: connect again, then hub.job(id)")
        status = self._hub.status(self)
        waits = status.state is JobState.PENDING
        single = int((status.get("tasks") or {}).get("total") or 1) == 1
        output = read_text(self.logs(tail=TAIL)) if single and not waits else ""
        return Picture(draw_job(status, self.why() if waits else None, output), not status.state.final)

    @property
    def state(self) -> JobState:
        """How it stands now; a job that has ended is not asked about again."""
        if not self._last or not JobState(self._last).final:
            self._last = self._hub.status(self).state
        return JobState(self._last)

    def status(self) -> Status:
        return self._hub.status(self)

    def wait(self, timeout: float | None = None) -> Status:
        return self._hub.wait(self, timeout)

    def why(self) -> dict[str, Any]:
        return self._hub.why(self)

    def cancel(self, grace_s: float | None = None) -> bool:
        """Ask for its end, also where it runs; False where it had ended before."""
        return self._hub.cancel(self, grace_s)

    def hold(self) -> Status:
        return self._hub.hold(self)

    def release(self) -> Status:
        return self._hub.release(self)

    def requeue(self) -> Status:
        return self._hub.requeue(self)

    def edit(self, **terms: Any) -> Status:
        return self._hub.edit(self, **terms)

    def logs(self, follow: bool = False, **wanted: Any) -> Iterator[bytes]:
        return self._hub.logs(self, follow=follow, **wanted)

    # --- as a future --------------------------------------------------------------------------------------------------

    def running(self) -> bool:
        """Whether it runs at this moment."""
        return self.state is JobState.RUNNING

    def result(self, timeout: float | None = None, trust: bool = False) -> Any:
        """Wait for its end. A function's result, a list of them for an array; the status of a command that succeeded.

        What another user's job gave is opened only with `trust`, since opening a value runs what is in it.
        Raises what the function raised, `CallFailed` for a job that ended badly, `CancelledError` for one that was
        stopped on request, `TimeoutError`.
        """
        found = self._hub.results(self, timeout, trust)
        if isinstance(found, Status) and not found.ok:
            raise tell_end(found)
        return found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            self.result(timeout)
        except (CancelledError, TimeoutError):
            raise
        except BaseException as fault:  # noqa: BLE001 - that is what was asked for
            return fault
        return None

    def _begin(self) -> None:
        self._hub.watch_end(self)

    def refuse(self, fault: BaseException) -> None:
        """Nothing will be heard of the job."""
        self._break(fault)

    def settle(self, status: Status) -> None:
        """Take the end of the job, for those who wait on it as a future."""
        self._last = status.state
        if status.ok:
            self._fill(status)
        elif isinstance(fault := tell_end(status), CancelledError):
            self._drop()
        else:
            self._break(fault)


def is_functions(status: Status) -> bool:
    """Whether a job runs a function."""
    return bool(status.get("calls") or (status.get("spec") or {}).get("function"))


def is_array(status: Status) -> bool:
    """Whether its tasks carry numbers."""
    return (status.get("spec") or {}).get("array") is not None


def tell_end(status: Status) -> BaseException:
    """The exception for a job that did not end well."""
    if status.state is JobState.KILLED and status.exit_class in ("", "cancelled", "user"):
        return CancelledError(f"job {status.id} was cancelled")
    words = status.error or f"ended as {status.state.value}"
    verdict = status.verdict or {}
    if verdict.get("kind", "code") != "code":
        words = f"{verdict['title']}: {(verdict['evidence'] or [words])[0]}; next: {verdict['step']}"
    return CallFailed(f"job {status.id}: {words}", status.exit_class, status.state.value, status.id)
