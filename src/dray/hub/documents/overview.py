"""The cluster at a glance: totals over all workers, and a few of them as rows, whichever way they are sorted.

Made for views that ask every other second: what it costs for each worker is a few lookups, and documents are made of
those alone that are shown. Holders of what belongs to others are counted and not named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dray.core.lifecycle.state.state import State
from dray.hub.documents.records import Document, worker_document, worker_tasks

SORTS = ("name", "use", "gpus", "state")
STEP_WORKERS = 512
SHOWN_HOLDERS = 8
_STATES = {"offline": 0, "draining": 1, "busy": 2, "ready": 3}


def overview_steps(
    state: State, sees: Callable[[str], bool], sort: str, match: str, offset: int, limit: int
) -> Iterator[Document]:
    """Walk over the workers; what is said last holds."""
    counts = dict.fromkeys(_STATES, 0)
    totals = {"slots": [0, 0], "gpus": [0, 0]}
    holders: dict[str, list[int]] = {}
    keys: list[tuple[Any, str]] = []
    answer: Document = {}
    names = list(state.workers)
    for first in range(0, len(names), STEP_WORKERS):
        yield answer
        for name in names[first : first + STEP_WORKERS]:
            if name not in state.workers:
                continue
            kind, slots, used, gpus, held, users = _look(state, name, holders)
            counts[kind] += 1
            if kind != "offline":
                for total, amounts in (("slots", (slots, used)), ("gpus", (gpus, held))):
                    totals[total][0] += amounts[0]
                    totals[total][1] += amounts[1]
            if match and match not in name and not any(match in user for user in users if sees(user)):
                continue
            by_use = -used / slots if slots else 0.0
            keys.append(({"name": 0, "use": by_use, "gpus": -held, "state": _STATES[kind]}[sort], name))
    keys.sort()
    answer = {
        "workers": counts,
        "slots": {"total": totals["slots"][0], "in_use": totals["slots"][1]},
        "gpus": {"total": totals["gpus"][0], "held": totals["gpus"][1]},
        "users": [
            {"user": user, "tasks": tasks, "gpus": gpus}
            for user, (tasks, gpus) in sorted(holders.items(), key=lambda item: (-item[1][1], -item[1][0]))
            if sees(user)
        ],
        "prewarms": dict(state.prewarm_ends),
        "matched": len(keys),
        "rows": [_row(state, sees, name) for _, name in keys[offset : offset + limit]],
    }
    yield answer


def _look(state: State, name: str, holders: dict[str, list[int]]) -> tuple[str, int, int, int, int, set[str]]:
    """A worker's state, slots, those used, cards, those held; and by whom."""
    worker, presence = state.workers[name], state.presence[name]
    slots = presence.slots if presence.session else worker.slots
    held = state.held.get(name, ())
    cards, users = 0, set[str]()
    for uid in held:
        attempt = state.attempts[uid]
        user = state.jobs[attempt.job_id].user
        cards += len(attempt.devices)
        users.add(user)
        has = holders.setdefault(user, [0, 0])
        has[0] += 1
        has[1] += len(attempt.devices)
    total = slots.batch_total + slots.service_total
    if not presence.session or worker.silent:
        kind = "offline"
    elif worker.draining:
        kind = "draining"
    else:
        kind = "busy" if len(held) >= max(total, 1) else "ready"
    return kind, total, len(held), worker.capability.gpu_count, cards, users


def _row(state: State, sees: Callable[[str], bool], name: str) -> Document:
    document = worker_document(state, name)
    tasks = worker_tasks(state, name)
    own = [line for line in tasks if sees(line["user"])]
    gpus = sum(len(state.attempts[uid].devices) for uid in state.held.get(name, ()))
    return {
        **{
            field: document[field]
            for field in (
                "id",
                "fake",
                "status",
                "state_detail",
                "gpu_type",
                "gpu_count",
                "cpu_count",
                "total_slots",
            )
        },
        "active_jobs": len(tasks),
        "gpus_held": gpus,
        "holders": [{"task_id": line["task_id"], "user": line["user"]} for line in own[:SHOWN_HOLDERS]],
        "others": len(tasks) - len(own[:SHOWN_HOLDERS]),
    }
