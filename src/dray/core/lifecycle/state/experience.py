"""What recent work has taught: which workers fail, where code is warm, how long jobs run where, what is usually asked.

A cache in memory, bounded, and no part of replay equality; after a restart run times are known, from the rows, and
steps a second, from the ledger.
Placement chooses by it among workers that fit, lanes are fed and starts are estimated by it. What may run at all never
depends on it. The surprising rule: time here is the latest end that was heard of, so
that reading needs no clock.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from dray.core.model.records.records import LONGEST_S, Attempt, Job, Phase
from dray.core.model.specs.resources import Asks
from dray.core.model.specs.spec import unpack_spec

TROUBLE_HALF_MS = 30 * 60_000
MOST_WARM, MOST_RUNTIMES, MOST_SHAPES = 16, 4_096, 200
COVERED = 0.95
FULL_SHARE = 100_000
MOST_NAMES, MOST_SPANS, MOST_SHARES = 2_000, 20, 200
# What is brought to a worker, and which it may lose again.
_BROUGHT = ("snapshot ", "environment ")
MOST_FIRSTS, MOST_STEPS, LEAST_SPAN_MS, SAMPLE_MS = 10_000, 1 << 53, 10_000, 5 * 60_000
ENOUGH_SPANS, ENOUGH_SHARES, ENOUGH_SAMPLES = 3, 20, 2
_BLAMED = {Phase.FAILED: 0.25, Phase.LOST: 1.0}


class Spans:
    """How long work has run lately, by kind of job, in milliseconds, newest last; and what share of its time limit work
    takes in general. Read by estimates alone.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, tuple[int, ...]] = {}
        self.shares: deque[float] = deque(maxlen=MOST_SHARES)

    def copy(self) -> Spans:
        """What is known now; what is learnt later is not in it."""
        found = Spans()
        found.by_name.update(self.by_name)
        found.shares.extend(self.shares)
        return found

    def learn(self, name: str, span_ms: int, limit_ms: int) -> None:
        """Take in one run that came to its own end."""
        known = self.by_name.pop(name, ())
        self.by_name[name] = (*known, span_ms)[-MOST_SPANS:]
        if len(self.by_name) > MOST_NAMES:
            del self.by_name[next(iter(self.by_name))]
        if limit_ms:
            self.shares.append(min(1.0, span_ms / limit_ms))

    def likely(self, name: str, limit_ms: int) -> tuple[int, ...]:
        """How long such a run may take, each value as likely as any other; none where nothing is known."""
        known = self.by_name.get(name, ())
        if len(known) >= ENOUGH_SPANS:
            return known
        if limit_ms and len(self.shares) >= ENOUGH_SHARES:
            return (*known, *(round(share * limit_ms) for share in self.shares))
        # One run says little: that it comes to its limit stays as likely.
        return (*known, limit_ms) if known and limit_ms else known


class SpeedSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many steps a second an attempt of a job of this name made on this kind of card for a while."""

    name: str
    kind: str
    rate: float


class Span(NamedTuple):
    """A first word of an attempt about its steps, or the word that was last taken in."""

    step: int
    at_ms: int
    sampled: bool = False


class StepRates:
    """How many steps a second jobs of one name make on one kind of card, by what they say of their progress.

    Between two words of an attempt, so that a run that goes on from a saved step counts only what it did itself; told
    for too short a time, or backwards, it says nothing. Of jobs that say nothing of steps tasks of one array are
    compared, which do as much each. `fresh`: what is to be put on record, from where it comes back by `learn`. What is
    said is bounded, since anybody may say anything; what is known of a name that is `pinned` is not learnt.
    """

    def __init__(self) -> None:
        self.marks: dict[str, Span] = {}
        self.fresh: list[SpeedSample] = []
        self.rates: dict[tuple[str, str], tuple[float, int]] = {}
        self.errors: dict[tuple[str, str], float] = {}
        self.of_name: dict[str, dict[str, float]] = {}
        self.version = 0
        self._arrays: dict[str, dict[str, tuple[float, int]]] = {}
        self._tellers: dict[str, None] = {}

    def told(self, uid: str, name: str, step: int, at_ms: int) -> float:
        """Take in a word of an attempt that runs; gives its rate where there is enough to say one, else 0."""
        if not 0 <= step <= MOST_STEPS:
            return 0.0
        mark = self.marks.get(uid)
        if mark is None or step < mark.step:
            if len(self.marks) >= MOST_FIRSTS:
                del self.marks[next(iter(self.marks))]
            if len(self._tellers) >= MOST_NAMES:
                self._tellers.clear()
            self.marks[uid], self._tellers[name] = Span(step, at_ms), None
            return 0.0
        if at_ms - mark.at_ms < SAMPLE_MS or step == mark.step:
            return 0.0
        self.marks[uid] = Span(step, at_ms, sampled=True)
        return (step - mark.step) * 1000 / (at_ms - mark.at_ms)

    def ended(self, uid: str, step: int | None, at_ms: int) -> float:
        """Take in the last word of an attempt, when it has ended; a short rest of one that has said enough is left."""
        mark = self.marks.pop(uid, None)
        if mark is None or step is None or not mark.step < step <= MOST_STEPS:
            return 0.0
        span_ms = at_ms - mark.at_ms
        if span_ms < (SAMPLE_MS if mark.sampled else LEAST_SPAN_MS):
            return 0.0
        return (step - mark.step) * 1000 / span_ms

    def ended_of_array(self, job_id: str, name: str, kind: str, wall_s: float) -> None:
        """Compare how long tasks of one array took on each kind of card, each time there are twice as many."""
        if name in self._tellers:
            return
        means = self._arrays.setdefault(job_id, {})
        mean, count = means.get(kind, (wall_s, 0))
        means[kind] = mean + (wall_s - mean) / (count + 1), count + 1
        if len(self._arrays) > MOST_NAMES:
            del self._arrays[next(iter(self._arrays))]
        if count < 1 or count & (count + 1):
            return
        for other, (took_s, of_it) in means.items():
            if other == kind or of_it < ENOUGH_SAMPLES:
                continue
            known = self.rates.get((name, other), (0.0, 0))[0]
            if not known:
                known = 1 / took_s
                self.fresh += ENOUGH_SAMPLES * [SpeedSample(name, other, known)]
            self.fresh.append(SpeedSample(name, kind, known * took_s / means[kind][0]))
            return

    def forget_array(self, job_id: str) -> None:
        """Its tasks have all ended."""
        self._arrays.pop(job_id, None)

    def learn(self, name: str, kind: str, rate: float, count: int, error: float) -> None:
        """Know what the record of one name on one kind of card says."""
        key = name, kind
        self.rates.pop(key, None)
        self.rates[key], self.errors[key] = (rate, count), error
        self.of_name.setdefault(name, {})[kind] = rate
        self.version += 1

    def forget(self, name: str, kind: str) -> None:
        """A record has gone."""
        if self.rates.pop((name, kind), None) is not None:
            del self.errors[name, kind], self.of_name[name][kind]
            if not self.of_name[name]:
                del self.of_name[name]
            self.version += 1

    def rate_of(self, name: str, kind: str) -> float:
        """Steps a second; 0 where nothing is known."""
        return self.rates.get((name, kind), (0.0, 0))[0]

    def relative(self, name: str) -> dict[str, float]:
        """How fast jobs of a name run on each kind of card that is known, the fastest of them being 1."""
        known = self.of_name.get(name, {})
        best = max(known.values(), default=0.0)
        return {kind: rate / best for kind, rate in known.items()} if best > 0 else {}

    def error_of(self, name: str, kinds: Iterable[str]) -> float:
        """By how much their records were wrong lately, at worst; one sample alone is no record."""
        return max(
            (
                self.errors[name, kind] if self.rates[name, kind][1] >= ENOUGH_SAMPLES else math.inf
                for kind in kinds
                if (name, kind) in self.rates
            ),
            default=math.inf,
        )


class Experience:
    """All of it. `shapes` counts placed tasks by what they asked for; old counts fade as new ones come in.

    `pinned`: how often somebody has said what is usually asked for, which is not learnt from then on.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.trouble: dict[str, tuple[float, int]] = {}
        self.warm: dict[str, dict[str, None]] = {}
        self.warm_version = 0
        self._tokens_of: dict[str, dict[str, None]] = {}
        self.runtimes: dict[tuple[str, str], tuple[float, int]] = {}
        self.spans = Spans()
        self.speeds = StepRates()
        self.calls: dict[str, float] = {}
        self.tasks: dict[str, float] = {}
        self.shapes: dict[Asks, int] = {}
        self.placed_ever = self._placed = self._fresh = 0
        self._typical: tuple[tuple[Asks, int], ...] = ()
        self.typical_version = 0
        self.pinned = 0

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn_end(self, job: Job, attempt: Attempt, gpu_type: str) -> None:
        """Take in how one attempt ended."""
        self.now_ms = max(self.now_ms, attempt.ended_at_ms)
        blame = _BLAMED.get(attempt.phase, 0.0)
        if blame or attempt.worker in self.trouble:
            self._blame(attempt.worker, blame)
        if not attempt.started or attempt.phase is Phase.LOST:
            return
        for token in tokens_of(job):
            self._warm_up(attempt.worker, token)
        if attempt.lane or job.service:
            # How long a place was held says nothing of how long its calls take, and a replica is to have no end.
            return
        if attempt.phase is Phase.SUCCEEDED and 0 < attempt.wall_s < LONGEST_S:
            self._time(job.name, gpu_type, attempt.wall_s)
        if attempt.phase in (Phase.SUCCEEDED, Phase.FAILED):
            self.spans.learn(kind_of_work(job), max(1, attempt.span_ms), attempt.limit_ms)
            if job.total > 1 and not job.gang:
                self._time_task(job, attempt)
                if attempt.phase is Phase.SUCCEEDED and job.name:
                    self.speeds.ended_of_array(job.id, job.name, gpu_type, attempt.span_ms / 1000)

    def _time_task(self, job: Job, attempt: Attempt) -> None:
        """Take in how long one task of an array took, in µs; recent ones count for more."""
        took = attempt.wall_s * 1e6 if 0 < attempt.wall_s < LONGEST_S else attempt.span_ms * 1000.0
        self.tasks[job.id] = (3 * self.tasks.get(job.id, took) + took) / 4

    def learn_calls(self, job: Job, count: int, wall_us: int) -> None:
        """Take in how long some calls of a job took together; recent ones count for more."""
        mean = wall_us / count
        known = self.calls.get(job.id)
        # Half and half: how far ahead a lane is fed follows within a few frames, whichever way it goes.
        self.calls[job.id] = mean if known is None else (known + mean) / 2
        self.spans.learn(kind_of_work(job), max(1, round(mean / 1000)), job.limit_ms)

    def forget_job(self, job_id: str) -> None:
        """Drop what is known of the calls, or of the tasks, of a job that is gone."""
        self.calls.pop(job_id, None)
        self.tasks.pop(job_id, None)
        self.speeds.forget_array(job_id)

    def learn_placed(self, asks: Asks, count: int) -> None:
        """Count placed tasks of one shape."""
        if count <= 0:
            return
        self.shapes[asks] = self.shapes.get(asks, 0) + count
        self.placed_ever += count
        self._placed += count
        self._fresh += count
        if len(self.shapes) > 2 * MOST_SHAPES:
            kept = sorted(self.shapes.items(), key=lambda item: -item[1])[:MOST_SHAPES]
            self.shapes = dict(kept)
        if self._placed > FULL_SHARE:
            self.shapes = {asks: half for asks, number in self.shapes.items() if (half := number // 2)}
            self._placed = sum(self.shapes.values())

    def forget_worker(self, worker: str) -> None:
        """Drop what is known of a worker that is gone."""
        self.trouble.pop(worker, None)
        for token in self._tokens_of.pop(worker, ()):
            self._cool(token, worker)

    def hear_warm(self, worker: str, tokens: Collection[str]) -> None:
        """A worker says what it has of snapshots and environments: what it does not name it has no longer."""
        for token in [one for one in self._tokens_of.get(worker, ()) if one.startswith(_BROUGHT)]:
            if token not in tokens:
                del self._tokens_of[worker][token]
                self._cool(token, worker)
        for token in tokens:
            if token.startswith(_BROUGHT):
                self._warm_up(worker, token)

    def is_warm(self, worker: str, needs: Needs) -> bool:
        """Whether a worker has all of it, as far as is known."""
        return all(worker in self.warm.get(token, ()) for token in needs.tokens)

    def _blame(self, worker: str, blame: float) -> None:
        now = self.trouble_of(worker) + blame
        if now < 0.02:
            self.trouble.pop(worker, None)
        else:
            self.trouble[worker] = (now, self.now_ms)

    def _warm_up(self, worker: str, token: str) -> None:
        tokens = self._tokens_of.setdefault(worker, {})
        tokens.pop(token, None)
        tokens[token] = None
        workers = self.warm.setdefault(token, {})
        if worker not in workers:
            workers[worker] = None
            self.warm_version += 1
        if len(tokens) > MOST_WARM:
            oldest = next(iter(tokens))
            del tokens[oldest]
            self._cool(oldest, worker)

    def _cool(self, token: str, worker: str) -> None:
        workers = self.warm.get(token)
        if workers is not None:
            workers.pop(worker, None)
            self.warm_version += 1
            if not workers:
                del self.warm[token]

    def _time(self, name: str, gpu_type: str, wall_s: float) -> None:
        key = (name, gpu_type)
        mean, count = self.runtimes.pop(key, (wall_s, 0))
        count = min(count + 1, 20)
        self.runtimes[key] = (mean + (wall_s - mean) / count, count)
        if len(self.runtimes) > MOST_RUNTIMES:
            del self.runtimes[next(iter(self.runtimes))]

    # --- reading ------------------------------------------------------------------------------------------------------

    def trouble_of(self, worker: str) -> float:
        """Failures and losses of a worker, older ones counting less: a failure is a quarter of a loss."""
        value, at_ms = self.trouble.get(worker, (0.0, 0))
        return float(value * 0.5 ** ((self.now_ms - at_ms) / TROUBLE_HALF_MS)) if value else 0.0

    def runtime_of(self, name: str, gpu_type: str) -> float:
        """The mean run time of jobs of this name on this kind of card; 0 where none is known."""
        return self.runtimes.get((name, gpu_type), (0.0, 0))[0]

    def typical(self) -> tuple[tuple[Asks, int], ...]:
        """What is usually asked for, most frequent first, until most of it is covered, with its weight.

        Made anew only now and then: everything computed from it hangs on `typical_version`.
        """
        if self.pinned:
            return self._typical
        if self._fresh > 64 + self._placed // 10 or (self._fresh and not self._typical):
            self.set_typical(self.shapes)
            self._fresh = 0
        return self._typical

    def pin_typical(self, shapes: dict[Asks, int]) -> None:
        """Say once and for all what is usually asked for: a published experiment is judged with its own."""
        self.set_typical(shapes)
        self.pinned += 1

    def set_typical(self, shapes: dict[Asks, int]) -> None:
        """Say what is usually asked for."""
        ranked = sorted(shapes.items(), key=lambda item: -item[1])
        covered, total, chosen = 0, sum(shapes.values()), []
        for asks, count in ranked:
            chosen.append((asks, count))
            covered += count
            if covered >= COVERED * total:
                break
        if tuple(chosen) != self._typical:
            self._typical = tuple(chosen)
            self.typical_version += 1


def kind_of_work(job: Job) -> str:
    """What jobs have in common that run about as long: their name, else what they run."""
    return job.name or work_of(job)


def work_of(job: Job) -> str:
    """What a job runs, whatever it is called: the beginning of its command, or its code."""
    return _work(job.spec)


@lru_cache(maxsize=1024)
def _work(packed: bytes) -> str:
    spec = unpack_spec(packed)
    if spec.function or spec.snapshot_sha or spec.snapshot_id:
        return _token(packed)
    # What a shell or an interpreter is given in a word of its own is all that tells one from another.
    words = 3 if len(spec.command) > 1 and spec.command[1].startswith("-") else 2
    return f"command {' '.join(spec.command[:words])[:200]}"


class Needs(NamedTuple):
    """What has to be brought to a worker before a task can start there."""

    snapshot_id: str
    snapshot_sha: str
    environment: str

    @property
    def tokens(self) -> tuple[str, ...]:
        """What a worker that has it calls warm."""
        tree, built = self.snapshot_sha or self.snapshot_id, self.environment
        return (*((f"snapshot {tree}",) if tree else ()), *((f"environment {built}",) if built else ()))


def needs_of(job: Job) -> Needs | None:
    """What a job needs brought; None for most."""
    return _needs(job.spec)


def tokens_of(job: Job) -> tuple[str, ...]:
    """What a worker has warm once it ran a job: the snapshot, the function, or the name; and its environment."""
    needs = _needs(job.spec)
    if needs is None:
        return (_token(job.spec),)
    is_function = not (needs.snapshot_sha or needs.snapshot_id) and unpack_spec(job.spec).function
    return (_token(job.spec), *needs.tokens) if is_function else needs.tokens


@lru_cache(maxsize=16_384)
def _needs(packed: bytes) -> Needs | None:
    spec = unpack_spec(packed)
    if not (spec.snapshot_id or spec.snapshot_sha or spec.environment):
        return None
    return Needs(spec.snapshot_id, spec.snapshot_sha, spec.environment)


# Asked for at the start and at the end of every attempt: so many may run meanwhile.
@lru_cache(maxsize=16_384)
def _token(packed: bytes) -> str:
    spec = unpack_spec(packed)
    if spec.snapshot_sha or spec.snapshot_id:
        return f"snapshot {spec.snapshot_sha or spec.snapshot_id}"
    if spec.function:
        return f"function {hashlib.sha256(spec.function).hexdigest()}"
    return f"name {spec.name}"
