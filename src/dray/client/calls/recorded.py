"""Results of functions read back later, by the id of their job: by the same program, another one, or days after."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dray.client.calls.large_values import Blobs
from dray.core.model.ids import split_task_id
from dray.functions.failures import CallFailed

PAGE = 1000
Ask = Callable[[str, Any], Awaitable[Any]]


class Recorded(NamedTuple):
    """One call as the hub has it: its state, its packed value or where that is, how it went wrong, who made it."""

    task_id: str
    state: str
    value: Any
    exit_class: str
    error: str
    worker: str = ""


async def read_page(
    ask: Ask, job_id: str, first: int, limit: int = PAGE
) -> tuple[list[Recorded], int | None]:
    """Recorded calls of a job from one on, in their order, and where to go on; None at the end."""
    answer = await ask("collect", {"job": job_id, "first": first, "limit": limit})
    index, details = answer["index"], answer.get("details") or {}
    states, workers = (
        [one] * len(index) if isinstance(one, str) else one
        for one in (answer["state"], answer.get("worker", ""))
    )
    rows = []
    for at, state, value, worker in zip(index, states, answer["value"], workers, strict=True):
        exit_class, error = (*(details.get(str(at)) or ()), "", "")[:2]
        rows.append(Recorded(f"{job_id}/{at}", state, value, exit_class, error, worker))
    return rows, answer["next"]


async def read_recorded(ask: Ask, task_id: str) -> list[Recorded]:
    """The recorded calls of a job in their order, or the one that is named by `JOB/INDEX`."""
    job_id, wanted = split_task_id(task_id) or (task_id, -1)
    if wanted >= 0:
        return (await read_page(ask, job_id, wanted, 1))[0]
    rows: list[Recorded] = []
    first: int | None = 0
    while first is not None:
        page, first = await read_page(ask, job_id, first)
        rows += page
    return rows


def open_recorded(row: Recorded, blobs: Blobs) -> Any:
    """The value of a recorded call; raises what it raised. Blocks while a large one is fetched."""
    data, opener = read_value(row, blobs), blobs.opener
    if row.state == "succeeded":
        return None if data is None else opener.value(data)
    if data is not None:
        fault: BaseException | None = None
        with contextlib.suppress(Exception):
            fault = opener.failure(data, row.task_id)
        if fault is not None:
            raise fault
    words = row.error or f"ended as {row.state}"
    raise CallFailed(f"{row.task_id}: {words}", row.exit_class, row.state, row.task_id)


def read_value(row: Recorded, blobs: Blobs) -> Any:
    """The packed value of a recorded call, None where it left none. Blocks while a large one is fetched."""
    return blobs.read(*row.value) if isinstance(row.value, (list, tuple)) else row.value
