"""What the policy lets people hand in: how fast, how many jobs, of how high a priority.

How fast is counted by token buckets per user, queue or label, kept in memory by the hub.

A submit takes one token per job from every bucket that is about it, all of them or none. The surprising rule: a
submit that is larger than the burst goes through when the bucket is full and leaves it in debt, because it could never
go through otherwise; the rate over time is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.labels import holds
from dray.core.model.policies.policy import EACH, Pace, Policy, Quota
from dray.core.model.records.records import Job
from dray.core.model.specs.check import MAX_PROBLEMS
from dray.core.model.specs.spec import TIERS, JobSpec
from dray.core.model.units import format_seconds
from dray.errors import Conflict, InvalidSpec, Problem, TooManyRequests
from dray.hub.decisions.holdings import principal_of

MAX_BUCKETS = 10_000
Principal = tuple[str, str]


class BucketKey(NamedTuple):
    """Whose bucket it is: user, queue or label, and the name."""

    kind: str
    name: str


class Level(NamedTuple):
    """What was in a bucket at a time of the hub."""

    tokens: float
    at_ms: int


class Filled(NamedTuple):
    """A bucket as it stands now."""

    key: BucketKey
    pace: Pace
    tokens: float


class SubmitPacing:
    """The buckets of one hub. A bucket nobody has drawn from is full and takes no room here."""

    def __init__(self) -> None:
        self._levels: dict[BucketKey, Level] = {}

    def take(self, policy: Policy, specs: Sequence[JobSpec], clock: Clock) -> None:
        """Draw one token per job, or raise `TooManyRequests` and draw none."""
        if not policy.pacing.submits:
            return
        paces = {_key_of(pace): pace for pace in policy.pacing.submits}
        drawn: Counter[tuple[BucketKey, Pace]] = Counter()
        for spec in specs:
            drawn.update(_buckets_of(paces, spec))
        waits = {bucket: self._wait_s(*bucket, count, clock) for bucket, count in drawn.items()}
        longest = max(waits, key=lambda bucket: waits[bucket], default=None)
        if longest is not None and waits[longest] > 0:
            raise _refusal(*longest, drawn[longest], waits[longest])
        for (key, pace), count in drawn.items():
            self._levels[key] = Level(self._tokens(key, pace, clock.now_ms) - count, clock.now_ms)
        if len(self._levels) > MAX_BUCKETS:
            self._forget_full(policy, clock.now_ms)

    def list_filled(self, policy: Policy, now_ms: int) -> list[Filled]:
        """Every bucket that was drawn from, and those named in the policy."""
        found: dict[BucketKey, Pace] = {}
        for pace in policy.pacing.submits:
            key = _key_of(pace)
            if key.name != EACH:
                found[key] = pace
            else:
                found |= {drawn: pace for drawn in self._levels if drawn.kind == key.kind}
        exact = {_key_of(pace): pace for pace in policy.pacing.submits}
        chosen = {key: exact.get(key, pace) for key, pace in found.items()}
        return [Filled(key, pace, self._tokens(key, pace, now_ms)) for key, pace in sorted(chosen.items())]

    def _tokens(self, key: BucketKey, pace: Pace, now_ms: int) -> float:
        level = self._levels.get(key)
        if level is None:
            return float(pace.burst)
        flowed = max(0, now_ms - level.at_ms) * pace.per_minute / 60_000
        return min(float(pace.burst), level.tokens + flowed)

    def _wait_s(self, key: BucketKey, pace: Pace, count: int, clock: Clock) -> float:
        missing = min(count, pace.burst) - self._tokens(key, pace, clock.now_ms)
        # Less than a millionth of a token is what adding up fractions leaves behind.
        return missing * 60 / pace.per_minute if missing > 1e-6 else 0.0

    def _forget_full(self, policy: Policy, now_ms: int) -> None:
        kept = {
            filled.key for filled in self.list_filled(policy, now_ms) if filled.tokens < filled.pace.burst
        }
        self._levels = {key: level for key, level in self._levels.items() if key in kept}


def _buckets_of(paces: Mapping[BucketKey, Pace], spec: JobSpec) -> Iterator[tuple[BucketKey, Pace]]:
    """The buckets that a job draws from; a pace for a name goes before the one for each."""
    for kind, name in (("user", spec.user_id), ("queue", spec.queue)):
        key = BucketKey(kind, name)
        pace = paces.get(key) or paces.get(BucketKey(kind, EACH))
        if pace is not None:
            yield key, pace
    for key, pace in paces.items():
        if key.kind == "label" and holds(key.name, spec.labels):
            yield key, pace


def _key_of(pace: Pace) -> BucketKey:
    kind = "user" if pace.user else "queue" if pace.queue else "label"
    return BucketKey(kind, getattr(pace, kind))


def _refusal(key: BucketKey, pace: Pace, count: int, wait_s: float) -> TooManyRequests:
    brings = f"{count} jobs" if count > 1 else "one job"
    what = f"{key.kind} {key.name!r} may submit {pace.per_minute:g} jobs a minute (burst {pace.burst})"
    return TooManyRequests(
        f"{what}, and this request brings {brings}: try again in {format_seconds(wait_s)}", wait_s
    )


def check_bounds(state: State, specs: Sequence[JobSpec]) -> None:
    """Refuse jobs whose priority is too high, and more jobs than a quota allows; all of a batch or none."""
    policy = state.policy
    if not any(quota.jobs >= 0 or quota.priority is not None for quota in policy.quotas):
        return
    problems = [
        Problem(f"[{place}].priority" if len(specs) > 1 else "priority", fault)
        for place, spec in enumerate(specs)
        if (fault := priority_fault(policy, spec))
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"{problems[0].where}: {problems[0].what}{more}", problems[:MAX_PROBLEMS])
    _check_number(state, specs)


def priority_fault(policy: Policy, spec: JobSpec) -> str:
    """What is wrong with the priority that a job was given; empty where it may have it."""
    for quota, (kind, name) in _quotas_of(policy, spec):
        if quota.priority is not None and spec.priority > quota.priority:
            own = TIERS[spec.job_tier].priority == spec.priority
            by_tier = f", which tier {spec.job_tier} gives by itself" if own and spec.priority else ""
            most = f"must be {quota.priority} or less for {kind} {name} (the policy's quotas)"
            return f"{most}, got {spec.priority}{by_tier}"
    return ""


def _check_number(state: State, specs: Sequence[JobSpec]) -> None:
    wanted: dict[Principal, tuple[int, int]] = {}
    for spec in specs:
        for quota, whom in _quotas_of(state.policy, spec):
            if quota.jobs >= 0:
                wanted[whom] = (quota.jobs, wanted.get(whom, (0, 0))[1] + 1)
    if not wanted:
        return
    there = dict.fromkeys(wanted, 0)
    for job in state.jobs.values():
        for whom in there:
            there[whom] += not job.state.final and _is_of(job, whom)
    for (kind, name), (most, more) in wanted.items():
        count = there[kind, name]
        if count + more > most:
            raise Conflict(
                f"{kind} {name} has {count} of {most} jobs that wait or run: wait until some have ended, or cancel "
                f"some (`dray ps`); {more} more would be too many"
            )


def _quotas_of(policy: Policy, spec: JobSpec) -> Iterator[tuple[Quota, Principal]]:
    """The quotas that a job would fall under; one for a name goes before the one for each."""
    mine = {
        "user": spec.user_id,
        "queue": spec.queue,
        "plugin": spec.plugin,
        "template": spec.template_name,
        "cluster": "all",
    }
    own = {quota.whom for quota in policy.quotas}
    for quota in policy.quotas:
        kind, name = quota.whom
        if name == mine[kind] or (name == EACH and mine[kind] and (kind, mine[kind]) not in own):
            yield quota, (kind, mine[kind])


def _is_of(job: Job, whom: Principal) -> bool:
    return principal_of(job, whom[0]) == whom[1]
