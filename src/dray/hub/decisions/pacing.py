"""How fast jobs may come in: token buckets per user, queue or label, kept in memory by the hub.

A submit takes one token per job from every bucket that is about it, all of them or none. The surprising rule: a
submit that is larger than the burst goes through when the bucket is full and leaves it in debt, because it could never
go through otherwise; the rate over time is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dray.core.lifecycle.state.events import Clock
from dray.core.model.labels import holds
from dray.core.model.policies.policy import EACH, Pace, Policy
from dray.core.model.specs.spec import JobSpec
from dray.core.model.units import format_seconds
from dray.errors import TooManyRequests

MAX_BUCKETS = 10_000


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
