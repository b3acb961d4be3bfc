"""The three questions any connection may ask: metrics, the list of workers, one worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dray.core.lifecycle.state.state import State
from dray.hub.access.caller import Caller
from dray.hub.documents.records import worker_line, worker_tasks
from dray.hub.engine.engine import Engine
from dray.wire.messages.codec import message
from dray.wire.messages.worker import WorkerListRequest, WorkerShowRequest


class Asker(Protocol):
    """Where an answer goes."""

    def push(self, envelope: dict[str, Any]) -> None: ...


class Questions:
    """Answers from the state as of a commit, in turn with everything else."""

    def __init__(self, engine: Callable[[], Engine], metrics: Callable[[], dict[str, float]]) -> None:
        self._engine, self._metrics = engine, metrics

    def answer(self, asker: Asker, body: object, caller: Caller) -> None:
        """Answer one question after the turn it falls into; of what a worker runs only what the caller may see."""
        if not isinstance(body, (WorkerListRequest, WorkerShowRequest)):
            asker.push(message("metrics_response", self._metrics()))
            return
        kind = "worker_list_request" if isinstance(body, WorkerListRequest) else "worker_show_request"
        self._engine().look(
            lambda state: self._compose(state, body, caller),
            asker.push,
            lambda error: asker.push(message("error", error=f"{kind}: the hub failed on this question")),
        )

    def _compose(
        self, state: State, body: WorkerListRequest | WorkerShowRequest, caller: Caller
    ) -> dict[str, Any]:
        if isinstance(body, WorkerListRequest):
            lines = [worker_line(state, worker_id) for worker_id in sorted(state.workers)]
            kept = [line for line in lines if not body.backend or line["backend"] == body.backend]
            return message("worker_list_response", {"workers": kept})
        if body.worker_id in state.workers:
            jobs = [line for line in worker_tasks(state, body.worker_id) if caller.sees(line["user"])]
            payload = {"worker": worker_line(state, body.worker_id), "jobs": jobs}
            return message("worker_show_response", payload)
        return message("error", error=f"worker_show_request: no worker {body.worker_id!r} is known here")
