"""Whether workers are taken out when they are at fault, and only then: counted anew from what each turn has committed.

Stricter than the product about when one must be: of work that fails elsewhere too, or where anything else ended there
meanwhile, nothing is claimed. And whether providers are counted, charged and judged as they should be, with lines and
formulas of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from dray.core.lifecycle.state.experience import work_of
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import Policy
from dray.core.model.records.ledger import ProviderRecord
from dray.core.model.records.records import Attempt, Phase
from dray.core.model.records.worker import Worker
from dray.core.model.specs.resources import Ask
from dray.core.scheduling.capacity.remaining import Rooms
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import BROKEN
from dray.sim.faults.world.market import has_providers
from dray.sim.faults.world.world import World

SLACK_MS = 5000

# Whose, and what of theirs.
Work = tuple[str, Hashable]


class QuarantineWatch:
    """What must happen is asked of one hub at a time: most of what it has counted goes with its memory."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._state: State | None = None
        self._since_ms = 0
        self._over: dict[str, Phase] = {}
        # By worker and job: when it last failed there, in hub time, which stands still while nobody leads; and those
        # that named the machine, with whose work they were.
        self._failed: dict[str, dict[str, int]] = {}
        self._named: dict[str, dict[str, tuple[int, Work]]] = {}
        # By work and worker: whether the last end there was a success, and when.
        self._went: dict[tuple[Work, str], tuple[bool, int]] = {}
        self._faults: dict[str, int] = {}
        self._out_ms = 0  # when a worker was last seen out

    def committed(self, life: HubLife, touched: Sequence[Attempt], fresh: Sequence[Attempt]) -> None:
        """Look at all that ended and was placed in a turn."""
        state = life.state
        if state is not self._state:
            self._state, self._since_ms = state, self._world.now_ms
            # Failures stay counted: a hub that starts again has those in mind that are in the tail of its log.
            for known in (self._named, self._went):
                known.clear()
            self._faults = {worker.id: worker.faults for worker in state.workers.values()}
        for gone in self._failed.keys() - state.workers.keys():
            # Removed by a person: whoever comes under that name begins anew.
            del self._failed[gone]
            self._named.pop(gone, None)
        for attempt in fresh:
            worker = state.workers[attempt.worker]
            if worker.on_trial and worker.trial != attempt.uid:
                self._world.fail(f"{worker.id} is on trial by {worker.trial} and got {attempt.uid} too")
        fresh_faults = set()
        for attempt in touched:
            if attempt.phase.live:
                # Adopted after it was given up, or known to a hub that was put back: it may end once more.
                self._over.pop(attempt.uid, None)
            elif not attempt.lane and self._over.get(attempt.uid) is not attempt.phase:
                self._over[attempt.uid] = attempt.phase
                if self._take_in(state, attempt):
                    fresh_faults.add(attempt.worker)
        if any(worker.draining and worker.faults for worker in state.workers.values()):
            self._out_ms = self._world.now_ms
        for worker in state.workers.values():
            self._judge(state, worker, worker.id in fresh_faults)

    def _take_in(self, state: State, attempt: Attempt) -> bool:
        """Count an end; gives whether it is that of one more job that names the machine."""
        worker, now_ms = attempt.worker, self._world.now_ms
        job = state.jobs[attempt.job_id]
        work = job.user, work_of(job)
        before_ms = self._failed.get(worker, {}).get(attempt.job_id)
        if attempt.phase is Phase.FAILED:
            self._failed.setdefault(worker, {})[attempt.job_id] = state.now_ms
        if attempt.phase in (Phase.SUCCEEDED, Phase.FAILED):
            self._went[work, worker] = attempt.phase is Phase.SUCCEEDED, now_ms
        if attempt.phase is Phase.FAILED and attempt.error == BROKEN and not attempt.cancel:
            named = self._named.setdefault(worker, {})
            new = attempt.job_id not in named
            at_once_ms = state.rules.at_once_ms + SLACK_MS
            if new and before_ms is not None and state.now_ms - before_ms <= at_once_ms:
                return (
                    False  # the failure just before, which named nothing, may be the one that is remembered
                )
            named[attempt.job_id] = now_ms, work
            return new
        self._named.pop(worker, None)
        return False

    def _judge(self, state: State, worker: Worker, fresh: bool) -> None:
        now_ms, window_ms = self._world.now_ms, state.rules.quarantine_window_ms
        before, self._faults[worker.id] = self._faults.get(worker.id, 0), worker.faults
        if worker.faults == 1 and not before:
            self._world.counts["worker quarantined"] += 1
            failed = self._failed.get(worker.id, {}).values()
            jobs = sum(1 for at_ms in failed if state.now_ms - at_ms <= window_ms + SLACK_MS)
            if jobs < state.rules.quarantine_failures:
                self._world.fail(f"{worker.id} is quarantined, and {jobs} jobs failed there within a minute")
        if worker.draining or worker.faults:
            self._named.pop(worker.id, None)
            return
        if not fresh or now_ms - self._since_ms <= window_ms + SLACK_MS:
            # Judged when something fails; and what was just put back may know of failures that nobody saw here.
            return
        # Of several failures of one job in a row the first may be the one that is remembered.
        surely_ms = window_ms - state.rules.at_once_ms - SLACK_MS
        recent = {
            job_id: work[0]
            for job_id, (at_ms, work) in self._named.get(worker.id, {}).items()
            if now_ms - at_ms <= surely_ms and self._fails_here_alone(worker.id, work)
        }
        first_ms = state.now_ms - window_ms
        goes_on = any(state.attempts[uid].started_ms >= first_ms for uid in state.held.get(worker.id, ()))
        # By the word of one user alone no second worker is taken out.
        believed = len(set(recent.values())) > 1 or now_ms - self._out_ms > SLACK_MS
        if len(recent) >= state.rules.quarantine_failures and not goes_on and believed:
            self._world.fail(f"{worker.id} still gets work: {sorted(recent)} failed there, which is broken")

    def _fails_here_alone(self, worker_id: str, work: Work) -> bool:
        """Whether some work of a user goes well on at least as many others as it fails on."""
        there = [went for (what, where), went in self._went.items() if what == work and where != worker_id]
        ill = [at_ms for well, at_ms in there if not well and self._world.now_ms - at_ms <= 65_000]
        well = [at_ms for well, at_ms in there if well and self._world.now_ms - at_ms <= 600_000]
        return len(ill) <= len(well)


WORSE = {"degraded": 0.16, "bad": 0.25}
BETTER = {"bad": 0.2, "degraded": 0.13}
ORDER = ("ok", "degraded", "bad")
HOUR_MS, MICRO = 3_600_000, 1_000_000


class ProviderWatch:
    """What it has seen of one hub's memory goes with that: another one begins anew."""

    def __init__(self, world: World) -> None:
        self._world, self._watches = world, has_providers(world.seed)
        self._state: State | None = None
        self._policies: tuple[Policy, ...] = ()
        self._rates: dict[str, int] = {}
        self._spent: dict[str, int] = {}
        self._money: dict[str, int] = {}
        self._health: dict[str, str] = {}

    def committed(self, life: HubLife, touched: Sequence[Attempt]) -> None:
        """Look at all that a turn has changed."""
        if not self._watches:
            return
        state = life.state
        if state is not self._state:
            self._begin(state)
        self._policies = (*self._policies[-1:], state.policy)
        fresh = [attempt for attempt in touched if attempt.uid not in self._rates]
        for attempt in fresh:
            self._check_rate(state, attempt)
        self._check_money(state, touched)
        before = {name for name, health in self._health.items() if health == "bad"}
        self._check_health(state, touched)
        bad = before & {name for name, health in self._health.items() if health == "bad"}
        if bad:
            self._check_places(state, fresh, bad)
        self._check_members(state)

    def _begin(self, state: State) -> None:
        self._state, self._policies = state, (state.policy,)
        self._rates = {attempt.uid: attempt.rate for attempt in state.attempts.values()}
        self._spent = {attempt.uid: _cost(attempt) for attempt in state.attempts.values()}
        self._money = {job.id: job.money for job in state.jobs.values()}
        self._health = {name: record.health for name, record in _records(state).items()}

    def _check_rate(self, state: State, attempt: Attempt) -> None:
        self._rates[attempt.uid] = attempt.rate
        worker = state.workers.get(attempt.worker)
        if worker is None or attempt.job_id not in state.jobs:
            return
        ask, name = state.ask(attempt), worker.all_labels.get("provider", "")
        cards, cores = worker.capability.gpu_count, worker.capability.cpu_count
        prices = [_price(policy, name, ask, cards, cores) for policy in self._policies]
        if all(abs(attempt.rate - price * MICRO) > 1 for price in prices):
            self._world.fail(
                f"{attempt.uid} on {attempt.worker} is charged {attempt.rate}, its price is {prices}"
            )
        self._world.counts["priced"] += attempt.rate > 0

    def _check_money(self, state: State, touched: Sequence[Attempt]) -> None:
        added: dict[str, int] = {}
        for attempt in touched:
            if attempt.rate != self._rates[attempt.uid]:
                self._world.fail(f"{attempt.uid} was charged {self._rates[attempt.uid]}, now {attempt.rate}")
            now, before = _cost(attempt), self._spent.get(attempt.uid, 0)
            added[attempt.job_id] = added.get(attempt.job_id, 0) + now - before
            self._spent[attempt.uid] = now
        for job_id in state.touched.jobs:
            job = state.jobs.get(job_id)
            if job is None:
                continue
            due = self._money.get(job_id, 0) + added.get(job_id, 0)
            if abs(job.money - due) > len(touched):
                self._world.fail(f"job {job_id} has cost {job.money}, by its attempts {due}")
            self._money[job_id] = job.money

    def _check_health(self, state: State, touched: Sequence[Attempt]) -> None:
        # What ended in the same turn may have come after it was judged.
        ended = {state.provider_of.get(attempt.worker, "") for attempt in touched if not attempt.phase.live}
        for name, record in _records(state).items():
            before, now = self._health.get(name, "ok"), record.health
            self._health[name] = now
            if before == now:
                continue
            self._world.counts[f"provider {now}"] += 1
            share = (record.recent_faults + 0.5) / (record.recent_ends + 5)
            fresh = name in ended or record.last_loss.startswith(f"{state.now_ms} ")
            if ORDER.index(now) > ORDER.index(before):
                unusual = record.recent_losses >= 2.4
                if not fresh and share < WORSE[now] - 0.01 and not (now == "degraded" and unusual):
                    self._world.fail(f"provider {name} is {now} with {share:.2f} of its attempts spoilt")
            elif ORDER.index(before) - ORDER.index(now) > 1:
                self._world.fail(f"provider {name} was {before} and is {now} at once")
            elif not fresh and share > BETTER[before] + 0.01:
                self._world.fail(f"provider {name} is {now} again with {share:.2f} of its attempts spoilt")

    def _check_places(self, state: State, fresh: Sequence[Attempt], bad: set[str]) -> None:
        if state.reservations or state.receipts or state.moves:
            return  # room that is kept decides for itself
        rooms, columns = Rooms(state), state.columns
        owners = [
            state.workers[name].all_labels.get("provider", "") if name else "" for name in columns.worker_of
        ]
        good = np.array([owner not in bad for owner in owners], dtype=np.bool_)
        for attempt in fresh:
            worker = state.workers.get(attempt.worker)
            if worker is None or not attempt.phase.live or worker.all_labels.get("provider", "") not in bad:
                continue
            if attempt.behind:
                self._world.fail(f"{attempt.uid} was queued behind another on {worker.id}, of a bad provider")
            job = state.jobs[attempt.job_id]
            self._world.counts["given to a bad provider"] += 1
            if attempt.no > 1 or job.gang or job.blamed or job.service or job.outgrown_bytes:
                continue  # where it was tried before it may go last
            if (
                job.workload in state.workloads
                and state.workloads[job.workload].record.terms.distribution.required
            ):
                continue  # elsewhere there may be too many of its workload
            if (rooms.mask(state.ask(attempt)) & good[: columns.count]).any():
                self._world.fail(f"{attempt.uid} went to {worker.id}, of a bad provider, and fits elsewhere")

    def _check_members(self, state: State) -> None:
        here: dict[str, int] = {}
        for worker in state.workers.values():
            name = worker.all_labels.get("provider", "")
            if state.provider_of.get(worker.id, "") != name:
                self._world.fail(f"{worker.id} is taken for one of {state.provider_of.get(worker.id)!r}")
            if name:
                here[name] = here.get(name, 0) + (not (worker.silent or worker.left))
        if here != state.providers_here:
            self._world.fail(
                f"there are {here} workers of each provider, and {state.providers_here} are counted"
            )


def _records(state: State) -> dict[str, ProviderRecord]:
    return {name: record for (_, name), record in state.ledger.items() if isinstance(record, ProviderRecord)}


def _cost(attempt: Attempt) -> int:
    if attempt.phase.live or not attempt.started:
        return 0
    return attempt.rate * max(0, attempt.span_ms) // HOUR_MS


def _price(policy: Policy, name: str, ask: Ask, cards: int, cores: float) -> float:
    """What an hour costs by one policy, where every card is an H100."""
    listed = policy.providers.get(name)
    if listed is None:
        return 0.0
    if ask.gpus and listed.price_per_gpu_hour:
        return listed.price_per_gpu_hour["H100"] * ask.gpus * ask.gpu_milli / 1000
    if ask.gpus:
        return listed.price_per_hour * min(1.0, ask.gpus * ask.gpu_milli / 1000 / cards)
    return listed.price_per_hour * min(1.0, max(1000, ask.cpu_milli) / 1000 / cores)
