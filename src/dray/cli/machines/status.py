"""The command `status`: how the cluster stands in a few lines, for a first look, a login message or a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import click

from dray.cli.base.exit_codes import is_numbered
from dray.cli.base.hub import Hub, job_path
from dray.cli.base.invocation import HubCommand, Session, pass_session

# What a person has stopped has not failed.
FAILED = ("failed", "worker_failed", "unschedulable")
DAY = timedelta(days=1)
_PAGE = 200
# More failures than this in a day are told as "at least".
COUNTED = 2000
# Each is one more question to the hub.
JUDGED_ARRAYS = 20
POOLS = ("batch", "service")
Document = Mapping[str, Any]


@click.command("status", cls=HubCommand)
@pass_session
def status(session: Session) -> None:
    """Say in a few lines how the cluster stands: workers, slots and GPUs in use, what waits, what failed in a day."""
    workers = session.hub.get("/workers")["workers"]
    alarms = [one["text"] for one in session.hub.get("/alarms")["alarms"]]
    failed = list(_failed_lately(session.hub))
    queues = session.hub.get("/queues")["queues"]
    found = {"alarms": alarms} | summarise(workers, queues, failed, _judge_arrays(session.hub, failed))
    if session.json:
        session.print_json(found)
        return
    from dray.cli.machines.views import draw_status

    print(draw_status(found))


def _failed_lately(hub: Hub) -> Iterator[Document]:
    """Jobs that failed in the last day. Lists go by the time of submission: the first page without any is the last."""
    since = datetime.now(UTC) - DAY
    query: dict[str, Any] = {"state": ",".join(FAILED), "limit": _PAGE}
    for _ in range(COUNTED // _PAGE):
        page = hub.get("/jobs", query)
        fresh = [
            job
            for job in page["jobs"]
            if datetime.fromisoformat(job["ended_at"] or job["submitted_at"]) >= since
        ]
        yield from fresh
        if not page.get("next_cursor") or not fresh:
            return
        query["cursor"] = page["next_cursor"]


def _judge_arrays(hub: Hub, failed: Sequence[Document]) -> dict[str, int]:
    """How the tasks of arrays failed, those of the newest arrays and of each the first hundred, as `why` tells them."""
    counts: Counter[str] = Counter()
    for job in [job for job in failed if is_numbered(job)][:JUDGED_ARRAYS]:
        for failure in hub.get(job_path(str(job["id"]), "/why"), {"fix": "false"}).get("failures") or ():
            counts[failure["title"]] += failure["tasks"]
    return dict(counts.most_common())


def summarise(
    workers: Sequence[Document],
    queues: Sequence[Document],
    failed: Sequence[Document],
    judged: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """The figures behind the lines; `judged`: how tasks of arrays failed."""
    here = [worker for worker in workers if worker["status"] != "offline"]
    slots = sum(worker["total_slots"] for worker in here)
    free = sum(int((worker.get("free") or {}).get(f"{pool}_slots") or 0) for worker in here for pool in POOLS)
    waits = [queue["oldest_wait_s"] for queue in queues if queue.get("oldest_wait_s") is not None]
    return {
        "workers": {
            "ready": len(
                [worker for worker in here if not worker.get("state_detail") and not worker.get("draining")]
            ),
            "draining": sorted(
                worker["id"] for worker in here if worker.get("draining") and not worker.get("faults")
            ),
            "not_ready": {
                worker["id"]: worker["state_detail"] for worker in here if worker.get("state_detail")
            },
            "away": {worker["id"]: worker.get("last_heartbeat") for worker in workers if worker not in here},
        },
        "slots": {"total": slots, "in_use": max(0, slots - free)},
        "gpus": {
            "total": sum(worker["gpu_count"] for worker in here),
            "held": sum(queue["gpus_held"] for queue in queues),
        },
        "tasks": {
            "running": sum(queue["running"] for queue in queues),
            "waiting": sum(queue["waiting"] for queue in queues),
        },
        "oldest_wait_s": max(waits, default=None),
        "starts_per_min": sum(queue["starts_per_min_5m"] for queue in queues),
        "ends_per_min": sum(queue["ends_per_min_5m"] for queue in queues),
        "failed_24h": dict(Counter(map(_kind, failed)).most_common()),
        "failed_tasks_24h": dict(judged),
    }


def _kind(job: Document) -> str:
    """How a job failed; of one with several tasks each has its own way."""
    verdict = job.get("verdict") or {}
    return "array" if is_numbered(job) else str(verdict.get("title") or job.get("exit_class") or job["state"])
