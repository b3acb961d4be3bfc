"""Whether a hub keeps to its policy: quotas, budgets, paces and caps, counted anew from what it commits.

Judges starts only: what ran before a rule came into force, or came back from a machine that was given up, may exceed
it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dray.core.lifecycle.state.state import State
from dray.core.model.policies.policy import PRINCIPALS, Pace, Policy, Quota
from dray.core.model.records.records import Attempt, Job
from dray.core.model.specs.resources import Ask
from dray.core.model.specs.spec import unpack_spec
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.world import World

HOUR_MS = 3_600_000
Principals = tuple[tuple[str, str], ...]


class Usage:
    """What one attempt has held of GPUs, and for whom, as the hub's own clock tells."""

    def __init__(self, milli: int, whose: Principals) -> None:
        self.milli, self.whose = milli, whose
        self.spells: list[list[int]] = []

    def within(self, first_ms: int, last_ms: int) -> int:
        """Milli-GPU milliseconds between two moments."""
        spans = (
            (max(begin, first_ms), min(end if end >= 0 else last_ms, last_ms)) for begin, end in self.spells
        )
        return self.milli * sum(max(0, end - begin) for begin, end in spans)


class PolicyWatch:
    """Watches the starts of one site through all its hubs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._policy = Policy()
        self._life = 0
        self._in_force_ms = 0
        self._usage: dict[str, Usage] = {}
        self._starts: dict[tuple[int, str, str], list[int]] = {}
        self._widest_gang = 0

    def rewind(self) -> None:
        """The hub was restored from a backup: it does not know what came after."""
        self._usage.clear()
        self._policy, self._life = Policy(), 0

    def committed(self, life: HubLife, touched: list[Attempt], fresh: list[Attempt]) -> None:
        """Judge what a turn has started."""
        state = life.state
        self._follow_regime(life)
        self._note_usage(state, touched)
        new = {attempt.uid for attempt in fresh}
        for attempt in fresh:
            job = state.jobs[attempt.job_id]
            self._check_quotas(state, attempt, job, new)
            self._check_caps(state, attempt, job)
            self._check_paces(state, attempt, job)

    def _follow_regime(self, life: HubLife) -> None:
        state = life.state
        changed = state.policy != self._policy
        # Tokens are full again after a start, and under another rule.
        if state.policy.pacing.starts != self._policy.pacing.starts or life.number != self._life:
            self._life, self._widest_gang = life.number, 0
            self._starts.clear()
        if changed:
            self._policy, self._in_force_ms = state.policy, state.now_ms

    def _note_usage(self, state: State, touched: list[Attempt]) -> None:
        for attempt in touched:
            job, ask = state.jobs.get(attempt.job_id), state.ask(attempt)
            if job is None or not ask.gpus or attempt.behind:
                continue
            usage = self._usage.get(attempt.uid)
            if usage is None:
                usage = self._usage[attempt.uid] = Usage(gpus_of(ask), principals(job))
            is_open = bool(usage.spells) and usage.spells[-1][1] < 0
            if attempt.phase.live or is_open:
                usage.whose = principals(job)
            if attempt.phase.live and not is_open:
                usage.spells.append([attempt.assigned_ms, -1])
            elif is_open:
                # One that is sent again, after its worker came back without it, has used nothing until then.
                usage.spells[-1][0] = attempt.assigned_ms
                if not attempt.phase.live:
                    usage.spells[-1][1] = state.now_ms

    # --- quotas -------------------------------------------------------------------------------------------------------

    def _check_quotas(self, state: State, attempt: Attempt, job: Job, new: set[str]) -> None:
        self._check_amounts(state, attempt, job)
        if not state.ask(attempt).gpus:
            return
        for quota, whom in quotas_of(state.policy, job):
            held = sum(
                gpus_of(state.ask(other))
                for uids in state.held.values()
                for uid in uids
                if whom in principals(state.jobs[(other := state.attempts[uid]).job_id])
            )
            if quota.gpus >= 0 and held > round(quota.gpus * 1000):
                self._world.fail(f"attempt {attempt.uid} makes {held} milli-GPUs of {whom}: {quota}")
            self._check_budget(state, attempt, quota, whom, new)

    def _check_amounts(self, state: State, attempt: Attempt, job: Job) -> None:
        """Cores, memory and tasks at once; a task that takes none of a thing may start however much others have."""
        mine = state.ask(attempt)
        for quota, whom in quotas_of(state.policy, job):
            if max(quota.cpus, quota.memory, quota.tasks) < 0:
                continue
            asks = [
                state.ask(other)
                for uids in state.held.values()
                for uid in uids
                if whom in principals(state.jobs[(other := state.attempts[uid]).job_id])
            ]
            sums = (
                ("cpus", mine.cpu_milli, sum(ask.cpu_milli for ask in asks), round(quota.cpus * 1000)),
                ("memory", mine.memory_bytes, sum(ask.memory_bytes for ask in asks), quota.memory),
                ("tasks", 1, len(asks), quota.tasks),
            )
            for name, own, held, most in sums:
                if own and getattr(quota, name) >= 0 and held > most:
                    self._world.fail(f"attempt {attempt.uid} makes {held} of {name} of {whom}: {quota}")

    def _check_budget(
        self, state: State, attempt: Attempt, quota: Quota, whom: tuple[str, str], new: set[str]
    ) -> None:
        budget = quota.gpu_hours
        if budget is None or not budget.hard:
            return
        per_ms = round(budget.per_s * 1000)
        first_ms = max(state.now_ms // per_ms * per_ms, self._in_force_ms)
        used = sum(
            usage.within(first_ms, state.now_ms)
            for uid, usage in self._usage.items()
            if uid not in new and whom in self._whose(state, uid, usage)
        )
        if used >= round(budget.hard * HOUR_MS * 1000):
            self._world.fail(f"attempt {attempt.uid} of {whom} starts over its budget, {used} used: {budget}")

    def _whose(self, state: State, uid: str, usage: Usage) -> Principals:
        """Whom it counts for: an edit moves what runs at once, and what has ended no more."""
        attempt = state.attempts.get(uid)
        live = attempt is not None and attempt.phase.live
        return principals(state.jobs[attempt.job_id]) if live and attempt is not None else usage.whose

    # --- caps and paces -----------------------------------------------------------------------------------------------

    def _check_caps(self, state: State, attempt: Attempt, job: Job) -> None:
        for cap in state.policy.pacing.running:
            if not has_label(job, cap.label):
                continue
            live = sum(
                1
                for job_id, uids in state.live_of.items()
                if has_label(state.jobs[job_id], cap.label)
                for uid in uids
                if not state.attempts[uid].behind
            )
            if live > cap.most:
                self._world.fail(
                    f"attempt {attempt.uid} is one of {live} with {cap.label}, {cap.most} may run"
                )

    def _check_paces(self, state: State, attempt: Attempt, job: Job) -> None:
        if job.gang:
            self._widest_gang = max(self._widest_gang, job.group_size)
        for number, pace in enumerate(state.policy.pacing.starts):
            for kind, name in paced(state.policy, pace, job):
                times = self._starts.setdefault((number, kind, name), [])
                times.append(attempt.assigned_ms)
                # A gang of more members than the pace saves up starts at once, and the pace owes them.
                slack = max(0, self._widest_gang - pace.burst)
                token_ms = round(60_000 / pace.per_minute)
                for place, at_ms in enumerate(times):
                    count, window_ms = len(times) - place, times[-1] - at_ms
                    if (count - pace.burst - slack) * token_ms > window_ms:
                        self._world.fail(f"{count} starts of {kind} {name} within {window_ms} ms: {pace}")


def gpus_of(ask: Ask) -> int:
    """The milli-GPUs of one task."""
    return ask.gpus * ask.gpu_milli


def principals(job: Job) -> Principals:
    """Whom a job's use counts for."""
    marks = ("plugin", job.plugin), ("template", job.template)
    return ("user", job.user), ("queue", job.queue), *marks, ("cluster", "all")


def has_label(job: Job, wanted: str) -> bool:
    """Whether a job has the label that a rule speaks of."""
    name, _, value = wanted.partition("=")
    given = unpack_spec(job.spec).labels.get(name)
    return given is not None and value in ("", given)


def quotas_of(policy: Policy, job: Job) -> Iterator[tuple[Quota, tuple[str, str]]]:
    """The quotas that a job falls under; one for a name goes before the one for each."""
    named = {(kind, getattr(quota, kind)) for quota in policy.quotas for kind in PRINCIPALS}
    for quota in policy.quotas:
        for kind, name in principals(job):
            wanted = getattr(quota, kind)
            if name and (wanted == name or (wanted == "*" and (kind, name) not in named)):
                yield quota, (kind, name)


def paced(policy: Policy, pace: Pace, job: Job) -> Iterator[tuple[str, str]]:
    """Whose starts of this job a pace counts."""
    for kind, name in (("user", job.user), ("queue", job.queue)):
        wanted = getattr(pace, kind)
        named = name in (getattr(other, kind) for other in policy.pacing.starts)
        if wanted == name or (wanted == "*" and not named):
            yield kind, name
    if pace.label and has_label(job, pace.label):
        yield "label", pace.label
