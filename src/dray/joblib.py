"""A backend for joblib: `import dray.joblib`, then `with joblib.parallel_config("dray"):` runs it on a cluster.

Importing this module registers the backend, which is its only purpose. Batches of calls travel as arguments of one
function, so that large inputs become blobs and all batches share one array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import joblib
from joblib.parallel import ParallelBackendBase

from dray.client.faces.default_hub import default_hub
from dray.client.faces.executor import Executor
from dray.client.faces.hub import Hub
from dray.client.futures.futures import CallFuture
from dray.client.futures.pausing import is_in_task
from dray.client.futures.task_session import session
from dray.functions.applying import run_batch


class DrayBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib ships no types
    """Runs joblib's batches as calls. Keywords beside `hub` are those of `submit`: `cpus=2, memory="4g"`."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = False
    uses_threads = False
    supports_sharedmem = False

    def __init__(self, hub: Hub | None = None, nesting_level: int | None = None, **terms: Any) -> None:
        terms.pop("inner_max_num_threads", None)
        super().__init__(nesting_level=nesting_level)
        self._given, self._terms = hub, terms
        self._pool: Executor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Inside a call the hub is found as anywhere else.
        return _rebuild, (self._terms,)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many batches may run at once; all slots of the cluster for -1."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        slots = max(1, self._hub().slots())
        return slots if n_jobs is None else max(1, slots + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        jobs = self.effective_n_jobs(n_jobs)
        capped = n_jobs > 0
        self._pool = Executor(jobs if capped else None, hub=self._hub(), **self._terms)
        return jobs

    def start_call(self) -> None:
        """A run begins: its caller only looks now and then whether a batch has ended, and leaves its slot to them."""
        if is_in_task():
            session().yield_slot()

    def stop_call(self) -> None:
        """A run has ended."""
        if is_in_task():
            session().resume_slot()

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None
    ) -> CallFuture[Any]:
        if self._pool is None:
            self.configure(-1)
        assert self._pool is not None  # made above
        future = self._pool.submit(run_batch, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: CallFuture[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def terminate(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def _hub(self) -> Hub:
        return self._given if self._given is not None else default_hub()


def _rebuild(terms: dict[str, Any]) -> DrayBackend:
    return DrayBackend(**terms)


joblib.register_parallel_backend("dray", DrayBackend)
