"""What callers may see and change of the site's rules: policy, settings, queues, quotas, paces, preemptions.

Queues and the policy are the site's and everybody's to see; what somebody holds or has used is theirs and the
admins'. Reads the state as of the last commit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from dray.config import HubConfig, tell_origin
from dray.core.lifecycle.state.effects import Note
from dray.core.lifecycle.state.parties import AMOUNTS, MINUTE_MS, GateKey, PaceGate, quota_key
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import DEFAULT_QUEUE, EACH, Cap, Pace, Quota
from dray.core.model.policies.spelling import list_values, policy_document
from dray.core.model.records.ledger import AlarmRecord
from dray.core.model.records.records import Job
from dray.core.model.specs.resources import WHOLE
from dray.core.scheduling.turns.order import waiting_in_order
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.addresses import read_address
from dray.hub.answers.slices import portions
from dray.hub.decisions.holdings import (
    Holding,
    Holdings,
    find_holdings,
    find_oldest,
    known_names,
    quotas_in_force,
    used_gpu_hours,
    whom,
)
from dray.hub.decisions.pacing import SubmitPacing
from dray.hub.decisions.policy import (
    APPLIED,
    DEFAULT,
    Change,
    apply_policy,
    check_etag,
    etag_of,
    examine,
    policy_record,
)
from dray.hub.documents.providers import provider_detail, provider_document, provider_names
from dray.hub.documents.queue_rates import QueueStatistics
from dray.hub.documents.receipts import ReceiptFilter, ReceiptSight, find_document, list_document
from dray.hub.documents.records import Document, moment
from dray.hub.documents.usage import find_idle, idle_document, usage_document
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.rows import Rows
from dray.hub.store.base import Store, UseQuery
from dray.wire.messages.client import Usage as ShowUsage


class SiteParts(NamedTuple):
    """What the answers are made from."""

    engine: Engine
    config: HubConfig
    clock: HubClock
    pacing: SubmitPacing
    statistics: QueueStatistics
    rows: Rows
    store: Store


class _Sight(NamedTuple):
    """What queues are told from, looked up once for all of them."""

    held: Holdings
    oldest: Mapping[str, Job]
    quotas: Mapping[tuple[str, str], Quota]
    shapes: Mapping[str, int]


class SiteAnswers:
    """One hub's answers about its rules."""

    def __init__(self, parts: SiteParts) -> None:
        self._parts, self._engine = parts, parts.engine
        self.pacing = parts.pacing

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
        return await self._engine.ask(policy_answer)

    async def apply(
        self, caller: Caller, raw: Any, dry_run: bool = False, force: bool = False, etag: str = ""
    ) -> Document:
        """Replace the policy, that of `etag` where one is given; with `dry_run` only tell what that would come to."""
        policy = check_policy(raw)
        if dry_run:

            def look(state: State) -> Document:
                check_etag(state.policy, etag)
                return _change_answer(state, examine(state, policy, force), False)

            return await self._engine.read(look)
        answer: Document = await self._engine.change(
            apply_policy(
                caller,
                policy,
                force,
                lambda state, change: _change_answer(state, change, bool(change.changes)),
                etag,
            ),
            who=caller.user,
            body=raw,
            kind="policy",
        )
        return answer

    async def settings(self, caller: Caller) -> Document:
        """Every setting of the hub's own configuration and where it came from."""
        config = self._parts.config
        names = [field.name for field in fields(config) if field.name != "origins"]
        values = [
            {"name": name, "value": _plain(getattr(config, name)), "origin": tell_origin(config, name)}
            for name in names
        ]
        for value in values:
            if value["name"] in ("store", "redis") and value["value"]:
                value["value"] = read_address(str(value["value"])).shown
        return {"values": values}

    # --- queues -------------------------------------------------------------------------------------------------------

    async def queues(self, caller: Caller) -> Document:
        def look(state: State) -> Document:
            names = _queue_names(state)
            sight = _look_around(state, names)
            return {"queues": [self._queue(state, name, sight) for name in names]}

        return await self._engine.ask(look)

    async def queue(self, caller: Caller, name: str, limit: int) -> Document:
        """One queue and the first who wait in it; of others' jobs only the places are told."""

        def look(state: State) -> Document:
            names = _queue_names(state)
            if name not in names:
                raise NotFound(f"there is no queue {name!r}: there is {', '.join(names)}")
            document = self._queue(state, name, _look_around(state, [name]))
            return document | {"line": _line(state, caller, waiting_in_order(state, name, limit))}

        return await self._engine.read(look)

    def _queue(self, state: State, name: str, sight: _Sight) -> Document:
        clock = self._parts.clock.read()
        rules, holding = state.policy.queue(name), sight.held["queue"].get(name, Holding())
        oldest, quota = sight.oldest.get(name), sight.quotas.get(("queue", name))
        rates = self._parts.statistics.rates(name, clock.now_ms)
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
            "shapes": sight.shapes.get(name, 0),
        }

    # --- quotas and paces ---------------------------------------------------------------------------------------------

    async def quotas(self, caller: Caller) -> Document:
        def look(state: State) -> Document:
            held, now_ms = find_holdings(state), self._parts.clock.read().now_ms
            names = known_names(state, held)
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
                line
                for line in _start_paces(state, now_ms)
                if line["kind"] != "user" or line["name"] == EACH or caller.sees(line["name"])
            ]
            running = [_cap_document(state, cap) for cap in pacing.running]
            return {"submits": submits, "starts": starts, "running": running}

        return await self._engine.read(look)

    async def alarms(self, caller: Caller) -> Document:
        """What is wrong now, longest first; what is about a job is for those who see the job."""

        def look(state: State) -> Document:
            found = sorted(
                (record for record in state.ledger.values() if isinstance(record, AlarmRecord)),
                key=lambda record: record.at_ms,
            )
            return {"alarms": [_alarm_document(one) for one in found if _sees(state, caller, one.job_id)]}

        return await self._engine.ask(look)

    async def usage(self, caller: Caller, ask: ShowUsage) -> Document:
        """What was asked for, held and used; of everybody for admins, of their own work for others."""
        until_ms = self._engine.clock_ms()
        since_ms = until_ms - round(ask.window_s * 1000)
        asked = UseQuery(ask.by, "" if caller.may("admin") else caller.user, since_ms, until_ms)
        await self._engine.settle()
        uses = await self._engine.ask(lambda state: dict(state.uses))

        def work() -> Document:
            return usage_document(asked, self._parts.store.sum_uses(asked), uses, ask.limit)

        # Off the loop: it walks over all attempts that the store has.
        return await asyncio.to_thread(work)

    async def idle(self, caller: Caller, limit: int) -> Document:
        """Cards that are held and idle now, longest first."""
        at_ms = self._engine.clock_ms()
        uses = await self._engine.ask(lambda state: dict(state.uses))
        found = await asyncio.to_thread(find_idle, uses, at_ms)

        def look(state: State, some: Sequence[tuple[float, str, int]]) -> list[Document]:
            made = [idle_document(state, *one) for one in some]
            return [one for one in made if one is not None and _sees(state, caller, one["job_id"])]

        shown: list[Document] = []
        async for some in portions(self._engine, found, look):
            shown += some
            if len(shown) >= limit:
                break
        return {"idle": shown[:limit]}

    # --- providers ----------------------------------------------------------------------------------------------------

    async def providers(self, caller: Caller) -> Document:
        """All providers."""

        def look(state: State) -> Document:
            return {"providers": [provider_document(state, name) for name in provider_names(state)]}

        return await self._engine.ask(look)

    async def provider(self, caller: Caller, name: str) -> Document:
        """One of them; of which jobs run how fast there only admins are told."""

        def look(state: State) -> Document:
            names = provider_names(state)
            if name not in names:
                known = ", ".join(map(repr, names[:20])) or "none"
                raise NotFound(f"there is no provider {name[:128]!r}: there is {known}")
            return provider_detail(state, name, caller.may("admin"))

        return await self._engine.ask(look)

    # --- preemptions --------------------------------------------------------------------------------------------------

    async def preemptions(self, caller: Caller, wanted: ReceiptFilter) -> Document:
        return await self._engine.read(
            lambda state: list_document(self._sight(caller), wanted, self._parts.clock.read())
        )

    async def preemption(self, caller: Caller, receipt_id: str) -> Document:
        return await self._engine.read(
            lambda state: find_document(self._sight(caller), receipt_id, self._parts.clock.read())
        )

    def _sight(self, caller: Caller) -> ReceiptSight:
        return ReceiptSight(caller, self._parts.rows)


def _sees(state: State, caller: Caller, job_id: str) -> bool:
    job = state.jobs.get(job_id)
    return not job_id or caller.may("admin") or (job is not None and caller.sees(job.user))


def _alarm_document(record: AlarmRecord) -> Document:
    named = {"kind": record.kind, "subject": record.subject, "text": record.text, "job_id": record.job_id}
    return {**named, "since": moment(record.at_ms)}


def policy_answer(state: State) -> Document:
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
        "etag": etag_of(state.policy),
    }


def _tell_origin(state: State) -> str:
    record = policy_record(state)
    if record.origin != APPLIED:
        return record.origin
    return f"applied by {record.user} at {moment(record.at_ms)}"


def _change_answer(state: State, change: Change, changed: bool) -> Document:
    return policy_answer(state) | {
        "changed": changed,
        "changes": [{"name": name, "old": old, "new": new} for name, old, new in change.changes],
        "problems": [{"where": problem.where, "what": problem.what} for problem in change.conflicts],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _queue_names(state: State) -> list[str]:
    waiting = [name for name, depth in state.backlog.depth.items() if depth]
    running = {state.jobs[job_id].queue for job_id in state.live_of}
    return sorted({DEFAULT_QUEUE, *state.policy.queues, *waiting, *running})


def _look_around(state: State, names: Sequence[str]) -> _Sight:
    """Look once at everything that any of these queues is asked about."""
    held = find_holdings(state)
    quotas = quotas_in_force(state.policy, {**held, "queue": {}.fromkeys(names, Holding())})
    parties = state.parties.all
    shapes = Counter(
        queue for queue, _ in {(parties[line.party].queue, line.shape) for line in state.backlog.buckets}
    )
    return _Sight(held, find_oldest(state, names), quotas, shapes)


def _line(state: State, caller: Caller, line: list[tuple[str, int]]) -> list[Document]:
    shown = []
    for place, (job_id, index) in enumerate(line):
        job = state.jobs[job_id]
        if not caller.sees(job.user):
            continue
        shown.append(
            {
                "place": place + 1,
                "job_id": job.id,
                "task": index if index >= 0 and job.spelled(index) >= 0 else None,
                "name": job.name,
                "user": job.user,
                "priority": job.priority,
                "tasks": job.untouched if index < 0 else 1,
                "submitted_at": moment(job.submitted_at_ms),
            }
        )
    return shown


def _quota_document(
    state: State, kind: str, name: str, quota: Quota, holding: Holding, now_ms: int
) -> Document:
    hours = quota.gpu_hours
    used = used_gpu_hours(state, kind, name, quota, now_ms)
    gpus = holding.gpu_milli / WHOLE
    standing = "ok"
    if quota.gpus >= 0 and gpus >= quota.gpus:
        standing = "full" if gpus == quota.gpus else "over"
    amounts = _amounts(state, kind, name, quota)
    if any(held >= limit for held, limit in amounts.values()):
        standing = "full" if standing == "ok" else standing
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
        "cpus_held": amounts["cpus"][0] / 1000 if "cpus" in amounts else None,
        "cpus_limit": quota.cpus if quota.cpus >= 0 else None,
        "memory_held": amounts["memory"][0] if "memory" in amounts else None,
        "memory_limit": quota.memory if quota.memory >= 0 else None,
        "tasks_limit": quota.tasks if quota.tasks >= 0 else None,
        "jobs_limit": quota.jobs if quota.jobs >= 0 else None,
        "priority_limit": quota.priority,
        "gpu_hours_used": round(used, 3) if hours is not None else None,
        "gpu_hours_soft": (hours.soft or None) if hours is not None else None,
        "gpu_hours_hard": (hours.hard or None) if hours is not None else None,
        "period_s": hours.per_s if hours is not None else None,
        "standing": standing,
    }


def _amounts(state: State, kind: str, name: str, quota: Quota) -> dict[str, tuple[int, int]]:
    """What is held and what may be of cores, memory and tasks, each in the unit of its gate."""
    key = quota_key(kind, name, whom(quota)[1])
    found = {}
    for rule, amount in AMOUNTS.items():
        if getattr(quota, rule) >= 0:
            gate = state.parties.gates.get(str(key._replace(rule=rule)))
            found[rule] = (gate.gpu_milli if gate is not None else 0, amount.limit(quota))
    return found


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


def _start_paces(state: State, now_ms: int) -> list[Document]:
    """The rules as they are written, and the buckets of those who have work under them."""
    found = []
    for number, pace in enumerate(state.policy.pacing.starts):
        kind, name = _pace_whom(pace)
        buckets = {
            gate.whom.name: gate
            for gate in state.parties.gates.values()
            if isinstance(gate, PaceGate) and (gate.whom.kind, gate.whom.mark) == (kind, str(number))
        }
        if name not in buckets:
            found.append(_pace_document(kind, name, pace, None if name == EACH else float(pace.burst)))
        found += [
            _pace_document(kind, whose, pace, _tokens(gate, now_ms))
            for whose, gate in sorted(buckets.items())
        ]
    return found


def _tokens(gate: PaceGate, now_ms: int) -> float:
    return round(gate.tokens_at(now_ms) * gate.rule.per_minute / MINUTE_MS, 3)


def _cap_document(state: State, cap: Cap) -> Document:
    gate = state.parties.gates.get(str(GateKey("cap", "label", cap.label)))
    return {"label": cap.label, "most": cap.most, "running": gate.live if gate is not None else 0}
