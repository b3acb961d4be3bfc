"""What callers may see and change of the site's rules: policy, settings, queues, quotas, paces.

Queues and the policy are the site's and everybody's to see; what somebody holds or has used is theirs and the
admins'. Reads the state as of the last commit.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from dray.config import HubConfig, tell_origin
from dray.core.lifecycle.effects import Note
from dray.core.lifecycle.state import State
from dray.core.model.labels import has_label
from dray.core.model.policy import DEFAULT_QUEUE, EACH, Pace, Quota
from dray.core.model.policy_check import check_policy
from dray.core.model.policy_spelling import list_values, policy_document
from dray.core.model.resources import WHOLE
from dray.core.model.spec import unpack_spec
from dray.errors import Forbidden, NotFound
from dray.hub.clock import HubClock
from dray.hub.documents import Document, moment
from dray.hub.engine import Engine
from dray.hub.holdings import Holding, Holdings, find_holdings, quotas_in_force, used_gpu_hours, whom
from dray.hub.policy_changes import APPLIED, DEFAULT, Change, apply_policy, examine, policy_record
from dray.hub.queue_lines import oldest_in, waiting_in_order
from dray.hub.queue_statistics import QueueStatistics
from dray.hub.service import Caller
from dray.hub.submit_pacing import SubmitPacing


class SiteParts(NamedTuple):
    """What the answers are made from."""

    engine: Engine
    config: HubConfig
    clock: HubClock
    pacing: SubmitPacing
    statistics: QueueStatistics


class SiteAnswers:
    """One hub's answers about its rules."""

    def __init__(self, parts: SiteParts) -> None:
        self._parts, self._engine = parts, parts.engine

    def hear(self, note: Note) -> None:
        """Count a committed start or end for its queue."""
        if note.type not in ("task_started", "task_ended"):
            return
        job = self._engine.state.jobs.get(note.job_id)
        if job is None:
            return
        now_ms = self._parts.clock.read().now_ms
        if note.type == "task_started":
            self._parts.statistics.note_start(job.queue, note.data["waited_ms"], now_ms)
        else:
            self._parts.statistics.note_end(job.queue, now_ms)

    # --- the policy and the settings ----------------------------------------------------------------------------------

    async def policy(self, caller: Caller) -> Document:
        return await self._engine.read(_policy_answer)

    async def apply(self, caller: Caller, raw: Any, dry_run: bool = False, force: bool = False) -> Document:
        """Replace the policy; with `dry_run` only tell what that would come to."""
        if not caller.may("admin"):
            raise Forbidden("changing the policy needs an admin token")
        policy = check_policy(raw)
        if dry_run:
            return await self._engine.read(
                lambda state: _change_answer(state, examine(state, policy, force), False)
            )
        answer: Document = await self._engine.change(
            apply_policy(
                caller,
                policy,
                force,
                lambda state, change: _change_answer(state, change, bool(change.changes)),
            )
        )
        return answer

    async def settings(self, caller: Caller) -> Document:
        """Every setting of the hub's own configuration and where it came from."""
        if not caller.may("admin"):
            raise Forbidden("the hub's settings need an admin token")
        config = self._parts.config
        names = [field.name for field in fields(config) if field.name != "origins"]
        values = [
            {"name": name, "value": _plain(getattr(config, name)), "origin": tell_origin(config, name)}
            for name in names
        ]
        return {"values": values}

    # --- queues -------------------------------------------------------------------------------------------------------

    async def queues(self, caller: Caller) -> Document:
        def look(state: State) -> Document:
            held = find_holdings(state)
            names = _queue_names(state, held)
            return {"queues": [self._queue(state, name, held) for name in names]}

        return await self._engine.read(look)

    async def queue(self, caller: Caller, name: str, limit: int) -> Document:
        """One queue and the first who wait in it; of others' jobs only the places are told."""

        def look(state: State) -> Document:
            held = find_holdings(state)
            names = _queue_names(state, held)
            if name not in names:
                raise NotFound(f"there is no queue {name!r}: there is {', '.join(names)}")
            line = waiting_in_order(state, name, limit, self._parts.clock.read().now_ms)
            return self._queue(state, name, held) | {"line": self._line(state, caller, line)}

        return await self._engine.read(look)

    def _queue(self, state: State, name: str, held: Holdings) -> Document:
        clock = self._parts.clock.read()
        rules, holding = state.policy.queue(name), held["queue"].get(name, Holding())
        rates, oldest = self._parts.statistics.rates(name, clock.now_ms), oldest_in(state, name)
        quota = quotas_in_force(state.policy, {**held, "queue": [name]}).get(("queue", name))
        return {
            "name": name,
            "policy": rules.order,
            "weight": rules.weight,
            "ageing_s": rules.ageing_s,
            "protect_after_s": rules.protect_after_s,
            "listed": name in state.policy.queues,
            "waiting": state.backlog.depth.get(name, 0),
            "running": holding.tasks,
            "gpus_held": holding.gpu_milli / WHOLE,
            "gpus_limit": quota.gpus if quota is not None and quota.gpus >= 0 else None,
            "oldest_wait_s": (clock.at_ms - oldest.submitted_at_ms) / 1000 if oldest is not None else None,
            "starts_per_min_5m": rates.starts_5m,
            "starts_per_min_1h": rates.starts_1h,
            "ends_per_min_5m": rates.ends_5m,
            "ends_per_min_1h": rates.ends_1h,
            "wait_p50_s": rates.wait_p50_s,
            "wait_p90_s": rates.wait_p90_s,
            "shapes": len({key.shape for key in state.backlog.buckets if key.queue == name}),
        }

    def _line(self, state: State, caller: Caller, line: list[tuple[str, int]]) -> list[Document]:
        shown = []
        for place, (job_id, index) in enumerate(line):
            job = state.jobs[job_id]
            if not caller.sees(job.user):
                continue
            shown.append(
                {
                    "place": place + 1,
                    "job_id": job.id,
                    "task": index if index >= 0 and job.numbered else None,
                    "name": job.name,
                    "user": job.user,
                    "priority": job.priority,
                    "tasks": job.untouched if index < 0 else 1,
                    "submitted_at": moment(job.submitted_at_ms),
                }
            )
        return shown

    # --- quotas and paces ---------------------------------------------------------------------------------------------

    async def quotas(self, caller: Caller) -> Document:
        def look(state: State) -> Document:
            held, now_ms = find_holdings(state), self._parts.clock.read().now_ms
            names = _known_names(state, held)
            names["user"].add(caller.user)
            found = quotas_in_force(state.policy, names)
            shown = [
                _quota_document(state, kind, name, quota, held[kind].get(name, Holding()), now_ms)
                for (kind, name), quota in sorted(found.items(), key=lambda item: item[0])
                if kind != "user" or caller.sees(name)
            ]
            return {"quotas": shown}

        return await self._engine.read(look)

    async def paces(self, caller: Caller) -> Document:
        def look(state: State) -> Document:
            pacing, now_ms = state.policy.pacing, self._parts.clock.read().now_ms
            buckets = self._parts.pacing.list_filled(state.policy, now_ms)
            each = [_pace_document(*_pace_whom(pace), pace, None) for pace in pacing.submits]
            submits = [line for line in each if line["name"] == EACH]
            submits += [
                _pace_document(bucket.key.kind, bucket.key.name, bucket.pace, round(bucket.tokens, 3))
                for bucket in buckets
                if bucket.key.kind != "user" or caller.sees(bucket.key.name)
            ]
            starts = [
                _pace_document(*_pace_whom(pace), pace, None)
                for pace in pacing.starts
                if pace.user in ("", EACH) or caller.sees(pace.user)
            ]
            counts = _running_by_label(state, [cap.label for cap in pacing.running])
            running = [
                {"label": cap.label, "most": cap.most, "running": counts[cap.label]} for cap in pacing.running
            ]
            return {"submits": submits, "starts": starts, "running": running}

        return await self._engine.read(look)


def _policy_answer(state: State) -> Document:
    record = policy_record(state)
    origin = _tell_origin(state)
    values = [
        {"name": item.name, "value": item.value, "origin": origin if item.given else DEFAULT}
        for item in list_values(state.policy)
    ]
    return {
        "policy": policy_document(state.policy),
        "values": values,
        "origin": record.origin,
        "user": record.user,
        "changed_at": moment(record.at_ms),
        "digest": record.digest,
    }


def _tell_origin(state: State) -> str:
    record = policy_record(state)
    if record.origin != APPLIED:
        return record.origin
    return f"applied by {record.user} at {moment(record.at_ms)}"


def _change_answer(state: State, change: Change, changed: bool) -> Document:
    return _policy_answer(state) | {
        "changed": changed,
        "changes": [{"name": name, "old": old, "new": new} for name, old, new in change.changes],
        "problems": [{"where": problem.where, "what": problem.what} for problem in change.conflicts],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _queue_names(state: State, held: Holdings) -> list[str]:
    waiting = [name for name, depth in state.backlog.depth.items() if depth]
    return sorted({DEFAULT_QUEUE, *state.policy.queues, *waiting, *held["queue"]})


def _known_names(state: State, held: Holdings) -> dict[str, set[str]]:
    """Everybody a quota for each may be about: who holds something, has used something, or waits."""
    names = {kind: set(found) for kind, found in held.items()}
    for key in state.backlog.buckets:
        names["user"].add(key.user)
        names["queue"].add(key.queue)
    for kind, whose in state.ledger:
        principal, _, name = whose.partition(":")
        if kind == "meter" and principal in names:
            names[principal].add(name)
    names["queue"] |= set(state.policy.queues)
    return names


def _quota_document(
    state: State, kind: str, name: str, quota: Quota, holding: Holding, now_ms: int
) -> Document:
    hours = quota.gpu_hours
    used = used_gpu_hours(state, kind, name, quota, now_ms)
    gpus = holding.gpu_milli / WHOLE
    standing = "ok"
    if quota.gpus >= 0 and gpus >= quota.gpus:
        standing = "full" if gpus == quota.gpus else "over"
    if hours is not None and hours.soft and used >= hours.soft:
        standing = "over soft"
    if hours is not None and hours.hard and used >= hours.hard:
        standing = "over hard"
    return {
        "kind": kind,
        "name": name,
        "each": whom(quota)[1] != name,
        "running": holding.tasks,
        "gpus_held": gpus,
        "gpus_limit": quota.gpus if quota.gpus >= 0 else None,
        "gpu_hours_used": round(used, 3) if hours is not None else None,
        "gpu_hours_soft": (hours.soft or None) if hours is not None else None,
        "gpu_hours_hard": (hours.hard or None) if hours is not None else None,
        "period_s": hours.per_s if hours is not None else None,
        "standing": standing,
    }


def _pace_whom(pace: Pace) -> tuple[str, str]:
    kind = "user" if pace.user else "queue" if pace.queue else "label"
    return kind, getattr(pace, kind)


def _pace_document(kind: str, name: str, pace: Pace, tokens: float | None) -> Document:
    return {
        "kind": kind,
        "name": name,
        "per_minute": pace.per_minute,
        "burst": pace.burst,
        "tokens": tokens,
    }


def _running_by_label(state: State, labels: list[str]) -> dict[str, int]:
    counts = dict.fromkeys(labels, 0)
    if counts:
        for job_id, uids in state.live_of.items():
            carried = unpack_spec(state.jobs[job_id].spec).labels
            for label in counts:
                if has_label(label, carried):
                    counts[label] += len(uids)
    return counts
