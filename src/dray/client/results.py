"""Results of functions read back later, by the id of their job: by the same program, another one, or days after."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dray.client.blobs import Blobs
from dray.core.model.ids import split_task_id
from dray.functions.failures import CallFailed, unpack_failure
from dray.functions.values import unpack

PAGE = 1000
Ask = Callable[[str, Any], Awaitable[Any]]


class Recorded(NamedTuple):
    """One call as the hub has it: its state, its packed value or where that is, how it went wrong."""

    task_id: str
    state: str
    value: Any
    exit_class: str
    error: str


async def read_recorded(ask: Ask, task_id: str) -> list[Recorded]:
    """The recorded calls of a job in their order, or the one that is named by `JOB/INDEX`."""
    job_id, wanted = split_task_id(task_id) or (task_id, -1)
    rows: dict[int, Recorded] = {}
    first: int | None = max(wanted, 0)
    while first is not None:
        answer = await ask("collect", {"job": job_id, "first": first, "limit": 1 if wanted >= 0 else PAGE})
        states, details = answer["state"], answer.get("details") or {}
        if isinstance(states, str):
            states = [states] * len(answer["index"])
        for index, state, value in zip(answer["index"], states, answer["value"], strict=True):
            exit_class, error = (*(details.get(str(index)) or ()), "", "")[:2]
            rows[index] = Recorded(f"{job_id}/{index}", state, value, exit_class, error)
        first = None if wanted >= 0 else answer["next"]
    return [rows[index] for index in sorted(rows)]


def open_recorded(row: Recorded, blobs: Blobs) -> Any:
    """The value of a recorded call; raises what it raised. Blocks while a large one is fetched."""
    data = blobs.read(*row.value) if isinstance(row.value, (list, tuple)) else row.value
    if row.state == "succeeded":
        return None if data is None else unpack(data)
    if data is not None:
        fault: BaseException | None = None
        with contextlib.suppress(Exception):
            fault = unpack_failure(data, row.task_id)
        if fault is not None:
            raise fault
    words = row.error or f"ended as {row.state}"
    raise CallFailed(f"{row.task_id}: {words}", row.exit_class, row.state, row.task_id)
