"""One replay in figures: what people compare policies by. Pure arithmetic over the ledger, plain numbers out.

Times are in seconds. Bounded slowdown is (waited + ran) / max(ran, 10 s), never below 1. A job that never ended counts
among the unfinished and in no mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dray.sim.traces.ledger import Ledger

BOUND_S = 10.0
MOST_USERS = 20
Floats = np.ndarray[Any, np.dtype[np.float64]]


def measure(ledger: Ledger) -> dict[str, Any]:
    """All figures of a replay."""
    columns = ledger.columns()
    done = columns["ended"] >= 0
    jct = (columns["ended"] - columns["arrival"])[done] / 1000
    ran = columns["duration"][done] / 1000
    queueing = np.maximum(jct - ran, 0)
    slowdown = np.maximum(1.0, jct / np.maximum(ran, BOUND_S))
    dated = columns["deadline"] > 0
    late = dated & (~done | (columns["ended"] > columns["deadline"]))
    return {
        "jobs": len(done),
        "ended": int(done.sum()),
        "unfinished": int((~done).sum()),
        "jct_s": _spread(jct),
        "queueing_s": _spread(queueing),
        "bounded_slowdown": _spread(slowdown),
        "makespan_s": round(ledger.makespan_ms / 1000, 3),
        **_use(ledger),
        "preemptions": int(columns["preempted"].sum()),
        "losses": int(columns["lost"].sum()),
        "deadlines": int(dated.sum()),
        "deadline_misses": int(late.sum()),
        "users": _users(ledger, done, jct, slowdown),
        "fairness": _fairness(ledger, done, slowdown),
    }


def _spread(values: Floats) -> dict[str, float]:
    if not len(values):
        return {"mean": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    p50, p99 = np.percentile(values, [50, 99])
    found = {"mean": values.mean(), "p50": p50, "p99": p99, "max": values.max()}
    return {name: round(float(value), 3) for name, value in found.items()}


def _use(ledger: Ledger) -> dict[str, float]:
    """Shares of the whole cluster: held over the makespan; idle and lost to fragmentation while work waited."""
    gpus = sum(node.gpus for node in ledger.nodes)
    cores = sum(node.cpu_milli for node in ledger.nodes) / 1000
    span = ledger.makespan_ms or 1
    pressed = [shot for shot in ledger.shots if shot.waiting > 0]
    count = len(pressed) or 1
    return {
        "gpu_utilisation": _share(ledger.held_ms / (gpus * span)) if gpus else 0.0,
        "cpu_utilisation": _share(ledger.cpu_held_ms / (cores * span)) if cores else 0.0,
        "unallocated": _share(sum(1 - shot.gpu_share for shot in pressed) / count)
        if gpus and pressed
        else 0.0,
        "fragmentation": _share(sum(shot.lost_share for shot in pressed) / count),
    }


def _share(value: float) -> float:
    return round(value, 5)


def _users(ledger: Ledger, done: Any, jct: Floats, slowdown: Floats) -> dict[str, dict[str, float]]:
    """Means per user, the ones with most jobs first."""
    rows: dict[str, list[int]] = {}
    for place, number in enumerate(np.flatnonzero(done).tolist()):
        rows.setdefault(ledger.jobs[number].user, []).append(place)
    largest = sorted(rows.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_USERS]
    return {
        user: {
            "jobs": len(places),
            "jct_s": round(float(jct[places].mean()), 3),
            "bounded_slowdown": round(float(slowdown[places].mean()), 3),
        }
        for user, places in largest
    }


def _fairness(ledger: Ledger, done: Any, slowdown: Floats) -> float:
    """Jain's index over the users' mean slowdowns: 1 when all wait alike, 1/n when one waits for all."""
    sums: dict[str, tuple[float, int]] = {}
    for place, number in enumerate(np.flatnonzero(done).tolist()):
        total, count = sums.get(ledger.jobs[number].user, (0.0, 0))
        sums[ledger.jobs[number].user] = (total + float(slowdown[place]), count + 1)
    means = [total / count for total, count in sums.values()]
    squares = sum(mean * mean for mean in means)
    return round(sum(means) ** 2 / (len(means) * squares), 4) if squares else 1.0
