"""A small world around the core that can be driven by numbers alone: jobs, workers with a memory of their own, faults.

The same steps serve the property tests, which choose the numbers so that a failure shrinks, and the replay under
different hash seeds, which draws them from a seed. Workers tell the truth about what they were given; messages may come
late, twice or never.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.core.harness import Cluster, registration
from tests.properties.draws import CAMPAIGNS, OFFERS, POLICIES, SPECS

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.recovery import load, read_ledger, release, wake_up
from dray.core.lifecycle.state.effects import Assign, Effect, FeedCalls
from dray.core.lifecycle.state.events import (
    Activity,
    AlarmChanged,
    AttemptEnded,
    AttemptSaved,
    AttemptYielded,
    Clock,
    EpochStarted,
    Event,
    Fact,
    IdleReached,
    Outcome,
    PlanDecided,
    PolicyChanged,
    Progressed,
    ResumeAsked,
    TemplateAdded,
    TemplateRemoved,
    WorkerChanged,
    WorkerDrained,
    WorkerForgotten,
    WorkerLabelled,
    pack_facts,
    unpack_facts,
)
from dray.core.lifecycle.state.service_events import (
    AdviceGiven,
    HealthChanged,
    ServiceScaled,
    ServiceUpdated,
    UpdateAbandoned,
    WorkerEnding,
)
from dray.core.lifecycle.state.state import Counters, State, Touched
from dray.core.lifecycle.state.timings import Rules
from dray.core.lifecycle.state.workload_events import (
    WorkloadChanged,
    WorkloadDropped,
    WorkloadMade,
    WorkloadRetried,
    WorkloadSwitched,
)
from dray.core.model.policies.policy import pack_policy
from dray.core.model.records.ledger import LedgerKey, pack_record, unpack_record
from dray.core.model.records.records import Attempt, Job, Phase, Task
from dray.core.model.records.worker import Worker
from dray.core.model.specs.spec import pack_spec, unpack_spec
from dray.core.scheduling.claims.reservations import find_stale
from dray.core.scheduling.passes.planning import plan, settle_plan

QUEUES = ("default", "default", "night")
CALL_ENDS = ("succeeded", "succeeded", "failed", "returned", "lost", "killed")
ENDS = ("succeeded", "failed", "failed", "killed", "preempted", "lost", "lost_unstarted")
# Ten seconds, and two minutes after the first moment of a world.
DEADLINES = ("2023-11-14T22:13:30Z", "2023-11-14T22:15:20Z")
WAITS_S = (0.5, 3, 12, 31, 45, 130)
# How many turns go by between two looks at whether a pass leaves the state alone.
LOOKS = 8
WORKERS, JOBS = 4, 40
Records = dict[str, dict[Any, bytes]]


class Rows:
    """What a store would hold: copies of what was written, and how far into the facts they reach."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[tuple[str, int], Task] = {}
        self.attempts: dict[str, Attempt] = {}
        self.workers: dict[str, Worker] = {}
        self.ledger: dict[LedgerKey, bytes] = {}
        self.now_ms = 0
        self.counters = Counters()
        self.applied = 0


class World(Cluster):
    """Each step takes plain numbers; one that makes no sense at the moment does nothing."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.given: dict[str, dict[str, str]] = {}
        self.said: list[tuple[str, Outcome]] = []
        self.journals: dict[str, int] = {}
        self.results: dict[tuple[str, int], tuple[Any, ...]] = {}
        self.rows = Rows()
        self.submitted = self.looks = 0
        super().__init__(rules or Rules(pass_placements=2, start_grace_ms=20_000, brake_min=4))

    # --- checks on the way --------------------------------------------------------------------------------------------

    def fold(self, event: Event) -> list[Effect]:
        effects = super().fold(event)
        if isinstance(event, PlanDecided):
            self._check_capacity(event)
        self._check_results()
        return effects

    def turn(self, *events: Event) -> list[Effect]:
        effects = super().turn(*events)
        for effect in effects:
            if not isinstance(effect, Assign | FeedCalls):
                continue
            if self.state.presence[effect.worker].session:
                self.given.setdefault(effect.worker, {}).setdefault(effect.uid, "assigned")
        self._check_wake_ups()
        return effects

    def _check_capacity(self, event: PlanDecided) -> None:
        columns = self.state.columns
        for placement in event.placements:
            row = columns.row_of[placement.worker]
            ask = self.state.asks(self.job(placement.job_id).shape)[placement.variant]
            for name, need in (("cpu", ask.cpu_milli), ("mem", ask.memory_bytes)):
                used, total = columns.get(f"used_{name}", row), columns.get(f"total_{name}", row)
                assert not need or used <= total, f"{placement}: {used} of {total} {name}"
            assert columns.get(f"{ask.pool}_live", row) <= columns.get(f"{ask.pool}_total", row), placement
            assert len(placement.devices) == ask.gpus, placement
            assert all(columns.card_used[row][index] <= 1000 for index in placement.devices), placement

    def _check_results(self) -> None:
        for key, task in self.state.tasks.items():
            if task.state.final:
                result = (task.state, task.exit_code, task.error, task.ended_at_ms)
                assert self.results.setdefault(key, result) == result, f"the result of {key} changed"
            else:
                assert key not in self.results, f"{key} had a result and lives again"

    def _check_wake_ups(self) -> None:
        """Fitting work and free credit never stay side by side after a pass."""
        state, lines = self.state, tuple(self.state.backlog.buckets)
        decided = plan(state, lines)
        assert not decided.placements, f"left lying: {decided.placements}"
        self.looks += 1
        if self.looks % LOOKS == 0:
            # The first look may have derived what the state keeps of itself; a pass as such leaves it as it was.
            before = pickle.dumps(state)
            settle_plan(state, plan(state, lines))
            find_stale(state)
            assert pickle.dumps(state) == before, "a pass has changed the state by itself"

    # --- steps --------------------------------------------------------------------------------------------------------

    def submit_one(self, kind: int, user: int) -> None:
        if self.submitted < JOBS:
            self.submitted += 1
            extras = {"queue": QUEUES[user % 3], "labels": {"team": "x"} if user % 4 == 3 else {}}
            if user % 5 == 2:
                extras |= {"deadline": DEADLINES[kind % len(DEADLINES)]}
            spec = {"name": "often"} | SPECS[kind % len(SPECS)] | extras
            open_ones = [name for name, one in self.state.workloads.items() if not one.record.is_sealed]
            if open_ones and kind % 2:
                spec["workload"] = open_ones[user % len(open_ones)]
            if user % 7 == 5:
                # Of a service that may be one, or not: an older job, or nobody at all.
                spec["uses"] = [f"j{max(1, self.submitted - kind % 5)}"]
            self.submit(f"j{self.submitted}", user=("ann", "bob")[user % 2], **spec)

    def change_policy(self, number: int, often: int) -> None:
        """A new policy comes into force, now and then, and a template comes or goes."""
        if often % 4 == 0:
            self.turn(PolicyChanged(pack_policy(POLICIES[number % len(POLICIES)]), "test"))
            name = f"t{number % 3}"
            known = ("template", name) in self.state.ledger
            self.turn(
                TemplateRemoved(name, "ann") if known and number % 2 else TemplateAdded(name, "", b"\x80")
            )
        else:
            self.steer_workload(number, often)

    def steer_workload(self, number: int, how: int) -> None:
        """A workload is made, switched, changed, put away, or what failed of it is tried again."""
        name, terms = f"c{number % 3}", CAMPAIGNS[how % len(CAMPAIGNS)]
        tally = self.state.workloads.get(name)
        if tally is None:
            self.turn(WorkloadMade(name, "ann", terms, how % 3 > 0))
        elif tally.record.is_archived:
            self.turn(WorkloadDropped(name, "ann"))
        elif tally.record.state.ended and (failed := self._failed(tally.jobs)) and how % 2:
            self.turn(WorkloadRetried(name, failed, "ann"))
        elif tally.record.state.ended:
            self.turn(WorkloadSwitched(name, "archive", "ann"))
        elif how % 8 == 7:
            self.turn(WorkloadChanged(name, terms, "ann"))
        else:
            verb = ("start", "pause", "start", "seal", "pause", "start", "cancel")[how % 8]
            self.turn(WorkloadSwitched(name, verb, "ann", stop=number % 2 == 1))

    def _failed(self, jobs: Iterable[str]) -> dict[str, int]:
        known = (self.state.jobs[name] for name in jobs)
        return {job.id: job.failed for job in known if job.failed}

    def cancel_one(self, job: int, index: int) -> None:
        self.cancel(f"j{max(1, self.submitted - job % 8)}", index % 8 if index % 3 else -1)

    def extend_one(self, job: int, count: int) -> None:
        self.extend(f"j{max(1, self.submitted - job % 8)}", count % 4, close=count % 5 == 0)

    def steer(self, job: int, how: int) -> None:
        """Hold or release a job, queue again what runs, edit what waits, let it wait for another."""
        name = f"j{max(1, self.submitted - job % 8)}"
        found = self.state.jobs.get(name)
        if found is None or found.state.final:
            return
        if found.service and how % 2:
            self.turn(self._change_service(found, job))
        elif how % 5 == 0:
            self.hold(name, on=not found.held)
        elif how % 5 == 1 and not unpack_spec(found.spec).at_most_once:
            self.ask_again(name, job % 4 if how % 2 else -1)
        elif how % 5 == 2:
            campaign = next(iter(self.state.workloads), "") if job % 3 == 0 else found.workload
            self.edit(name, priority=how % 3, queue=("default", "night")[job % 2], workload=campaign)
        elif how % 5 == 3 and not (found.cursor or found.live or found.requeued):
            self.edit(name, cpu_milli=1000 * (1 + how % 4))
        else:
            # An edit may wait for older jobs only: that is how the shell keeps circles out.
            others = [
                one.id for one in self.state.jobs.values() if one.seq < found.seq and not one.state.final
            ]
            self.edit(
                name,
                after=[f"{('ok', 'any', 'fail')[how % 3]}:{others[job % len(others)]}"] if others else [],
            )

    def _change_service(self, job: Job, how: int) -> ServiceScaled | ServiceUpdated | UpdateAbandoned:
        """Another size, another revision of the spec, or an update given up."""
        if how % 3 == 2 and job.revision != job.stable:
            return UpdateAbandoned(job.id, "on request", "ann")
        if how % 3:
            spec = msgspec.structs.replace(unpack_spec(job.spec), name=f"revision {job.newest + 1}")
            return ServiceUpdated(job.id, pack_spec(spec), "ann")
        return ServiceScaled(job.id, how % 4, "ann")

    def connect(self, number: int, offer: int) -> None:
        """A worker registers (again), as the same machine and truthfully."""
        worker = f"w{number % WORKERS}"
        given = self.given.setdefault(worker, {})
        reports = [self._report(worker, uid, stage) for uid, stage in given.items() if stage != "assigned"]
        unacked = [outcome for name, outcome in self.said[-3:] if name == worker]
        journal = f"{worker}-{self.journals.get(worker, 0)}"
        kind = OFFERS[(number + (offer % 5 == 4)) % len(OFFERS)]
        self.register(worker, active=reports, finished=unacked, journal_id=journal, **kind)
        self.beating[worker] = None
        for uid in [uid for uid, stage in given.items() if stage == "assigned"]:
            if uid not in self.held(worker):
                del given[uid]
        self.ready(number, offer)

    def _report(self, worker: str, uid: str, stage: str) -> Activity:
        if uid in self.state.attempts:
            return self.active(uid, running=stage == "running")
        attempt = self.rows.attempts[uid]
        return Activity(attempt.job_id, attempt.index, uid, over=True)

    def restart_worker(self, number: int, new_journal: int) -> None:
        """All its processes are gone; a new journal means it does not even know what it had."""
        worker = f"w{number % WORKERS}"
        self.given[worker] = {}
        self.journals[worker] = self.journals.get(worker, 0) + new_journal % 2
        if worker in self.state.workers:
            self.connect(number, 0)

    def ready(self, number: int, credit: int) -> None:
        worker = f"w{number % WORKERS}"
        if self._connected(worker):
            self.poll(worker, credit % 6)

    def disturb(self, number: int, how: int) -> None:
        """Break its socket, freeze it, say goodbye, drain or resume it, change what it has, forget it."""
        worker = f"w{number % WORKERS}"
        if worker not in self.state.workers:
            return
        if how % 6 == 0:
            self.break_socket(worker)
        elif how % 6 == 1:
            self.beating.pop(worker, None)
            key = f"away {worker}"
            raised = ("alarm", key) not in self.state.ledger
            self.turn(AlarmChanged(key, "worker_away", worker, "it is away", raised))
            self.turn(AdviceGiven(f"kind {number % 5}", "A100 x8", worker, 1, how % 3, 60_000, 20_000))
            for uid in list(self.state.held.get(worker, ())):
                self.turn(IdleReached(uid, "" if self.state.attempts[uid].idling else "warn", 60, 30))
        elif how % 6 == 2:
            self.leave(worker)
        elif how % 6 == 3:
            self.turn(WorkerDrained(worker, not self.state.workers[worker].draining))
            given = {} if self.state.workers[worker].given else {"rack": str(how % 3)}
            self.turn(WorkerLabelled(worker, given))
            # Sometimes soon enough to matter to what runs there.
            lasts_ms = (0, 90_000, 3_600_000)[number % 3]
            self.turn(WorkerEnding(worker, self.clock.at_ms + lasts_ms if lasts_ms else 0, "ann"))
        elif how % 6 == 4:
            other = registration(worker, **OFFERS[(number + how) % len(OFFERS)])
            self.turn(WorkerChanged(worker, other.capability, other.devices))
        elif not self._connected(worker):
            self.turn(WorkerForgotten(worker))

    def doze(self, number: int, how: int) -> None:
        """It says nothing for a while and then goes on in the same session, if it still has one."""
        worker = f"w{number % WORKERS}"
        if self._connected(worker):
            self.beating.pop(worker, None)
            self.advance(45 if how % 2 else 28)
            if self._connected(worker):
                self.beating[worker] = None
                self.turn(*self.sign_of_life(worker))

    def progress(self, number: int, steps: int) -> None:
        """A worker accepts or starts something it was given; a step may be said again."""
        worker, given = self._choose(number)
        if not given or not self._connected(worker):
            return
        uid = list(given)[number // WORKERS % len(given)]
        if uid not in self.state.attempts:
            return
        if steps % 3 == 0 or given[uid] == "assigned":
            self.accept(uid)
            given[uid] = "accepted" if given[uid] == "assigned" else given[uid]
        if steps % 3:
            self.start(uid)
            given[uid] = "running"
            self.turn(Progressed(worker, uid, self.now_ms // 1000))
        if steps % 5 == 0 and not self.state.workers[worker].base:
            attempt = self.state.attempts[uid]
            index = self.spelled(attempt)
            self.turn(AttemptSaved(worker, attempt.job_id, index, uid, steps, 100 * number))

    def finish(self, number: int, how: int) -> None:
        """A worker's process ends and it says so, unless it is cut off: then it says so when it is back."""
        worker, given = self._choose(number)
        live = [uid for uid in given if uid in self.state.attempts]
        if not live:
            return
        uid = live[number // WORKERS % len(live)]
        end = ENDS[how % len(ENDS)]
        if self._connected(worker):
            self.turn(*self.sign_of_life(worker), Progressed(worker, uid, self.now_ms // 1000))
        lost = end.startswith("lost")
        if self.state.attempts[uid].lane:
            self._finish_calls(worker, uid, how)
            return
        said = self.outcome(uid, "failed" if lost else end, exit_class=end if lost else "", exit_code=how % 3)
        del given[uid]
        self.said.append((worker, said))
        if self._connected(worker):
            self.turn(*self.sign_of_life(worker), AttemptEnded(worker, said))

    def _finish_calls(self, worker: str, uid: str, how: int) -> None:
        """Some calls of a lane end, in one frame; a lane that is to stop is over after that."""
        lane, connected = self.state.attempts[uid], self._connected(worker)
        if lane.cancel or not lane.phase.live:
            del self.given[worker][uid]
            said = self.outcome(uid, "preempted" if lane.cancel == "preempted" else "killed")
            self.said.append((worker, said))
            if connected:
                self.turn(*self.sign_of_life(worker), AttemptEnded(worker, said))
            return
        calls = list(lane.calls or ())[: 1 + how % 4]
        if connected and calls:
            words = tuple(CALL_ENDS[(how + place) % len(CALL_ENDS)] for place in range(len(calls)))
            before = self.ended_calls(lane.job_id)
            self.returns(uid, calls, words if how % 3 else "succeeded", wall_us=how * 1000)
            after = self.ended_calls(lane.job_id)
            assert 0 <= after - before <= len(calls), (
                f"{len(calls)} calls ended, {after - before} are counted"
            )

    def ended_calls(self, job_id: str) -> int:
        """How many calls of a job have their result."""
        return self.state.jobs[job_id].ended

    def pause(self, number: int, how: int) -> None:
        """Something that runs waits for others, or goes on."""
        worker, given = self._choose(number)
        live = [uid for uid in given if uid in self.state.attempts and given[uid] == "running"]
        if not live or not self._connected(worker):
            return
        uid = live[number // WORKERS % len(live)]
        word = AttemptYielded(worker, uid) if how % 2 else ResumeAsked(worker, uid)
        self.turn(*self.sign_of_life(worker), word)

    def save(self, number: int, step: int) -> None:
        """A task says that its work is safe."""
        worker, given = self._choose(number)
        live = [uid for uid in given if uid in self.state.attempts and given[uid] == "running"]
        if live and self._connected(worker):
            attempt = self.state.attempts[live[0]]
            index = self.spelled(attempt)
            saved = AttemptSaved(worker, attempt.job_id, index, attempt.uid, step)
            well = HealthChanged(worker, attempt.job_id, index, attempt.uid, step % 3 > 0, step % 7 > 0)
            word = well if self.job(attempt.job_id).service else saved
            self.turn(*self.sign_of_life(worker), word)

    def repeat(self, number: int, _: int) -> None:
        """A result is sent again."""
        if self.said:
            worker, said = self.said[number % len(self.said)]
            if self._connected(worker):
                self.turn(*self.sign_of_life(worker), AttemptEnded(worker, said))

    def wait(self, how: int, _: int) -> None:
        self.advance(WAITS_S[how % len(WAITS_S)])

    def _connected(self, worker: str) -> bool:
        return worker in self.state.workers and bool(self.state.presence[worker].session)

    def _choose(self, number: int) -> tuple[str, dict[str, str]]:
        """A worker that has something, the one at this number where there are several."""
        busy = [worker for worker, given in self.given.items() if given]
        worker = busy[number % len(busy)] if busy else "w0"
        return worker, self.given.setdefault(worker, {})

    # --- rows and restarts --------------------------------------------------------------------------------------------

    def write_rows(self, _: int = 0, __: int = 0) -> None:
        """Copy what changed to the rows, then let go of what ended."""
        state, rows = self.state, self.rows
        touched, state.touched = state.touched, Touched()
        for kind in ("jobs", "tasks", "attempts", "workers"):
            live, kept = getattr(state, kind), getattr(rows, kind)
            for key in getattr(touched, kind):
                if key in live:
                    kept[key] = _twin(live[key])
                elif kind == "workers":
                    kept.pop(key, None)
        for key in touched.ledger:
            rows.ledger.pop(key, None)
            if key in state.ledger:
                rows.ledger[key] = pack_record(state.ledger[key])
        rows.now_ms = state.now_ms
        rows.counters, rows.applied = copy.copy(state.counters), len(self.journal)
        release(state, touched.jobs, touched.tasks, touched.attempts)
        found = problems(state)
        assert not found, f"after letting go: {found}"

    def restart_hub(self, back: int = 0, __: int = 0) -> None:
        """The hub dies and comes back from rows and the tail of its facts, as if nothing had happened."""
        state = self.recovered()
        self.compare(state)
        self.state = state
        wake_up(state, self.clock)
        self.beating.clear()
        self.fold(EpochStarted(state.counters.epoch + 1))
        self.turn()
        for number in range(back % (WORKERS + 1)):
            self.connect(number, 0)

    def recovered(self) -> State:
        rows, state = self.rows, State(self.state.rules)
        attempts = [_twin(attempt) for attempt in rows.attempts.values() if self._is_loaded(attempt)]
        held = {attempt.job_id for attempt in attempts}
        jobs = [copy.copy(job) for job in rows.jobs.values() if not job.state.final or job.id in held]
        loaded = {job.id for job in jobs}
        tasks = [copy.copy(task) for task in rows.tasks.values() if task.job_id in loaded]
        workers = [copy.copy(worker) for worker in rows.workers.values()]
        state.now_ms = rows.now_ms
        read_ledger(state, [(*key, packed) for key, packed in rows.ledger.items()])
        load(state, copy.copy(rows.counters), (jobs, tasks, attempts, workers))
        refold(state, self.journal[rows.applied :])
        return state

    def _is_loaded(self, attempt: Attempt) -> bool:
        if attempt.lane:
            return attempt.phase.live
        task = self.rows.tasks[attempt.job_id, attempt.index]
        return attempt.phase.live or (task.queued and task.last_uid == attempt.uid)

    def compare(self, other: State) -> None:
        """What is alive here must be there, byte for byte; what has ended may have been let go on either side."""
        ours, theirs = records(self.state), records(other)
        for kind, mine in ours.items():
            for key, packed in mine.items():
                if key in theirs[kind] or self._is_alive(kind, key):
                    assert theirs[kind].get(key) == packed, f"{kind} {key} differs after recovery"
        assert other.counters == self.state.counters
        found = problems(other)
        assert not found, f"after recovery: {found}"

    def _is_alive(self, kind: str, key: Any) -> bool:
        if kind == "jobs":
            return not self.state.jobs[key].state.final
        if kind == "tasks":
            return not self.state.tasks[key].state.final
        phase = self.state.attempts[key].phase if kind == "attempts" else Phase.RUNNING
        return phase.live


def _twin(record: Any) -> Any:
    """A copy of a record; what is outstanding in a lane changes in place."""
    twin = copy.copy(record)
    if isinstance(twin, Attempt) and twin.calls is not None:
        twin.calls = dict(twin.calls)
    return twin


def records(state: State) -> Records:
    """The durable side of a state as bytes. Numbers of shapes and parties are caches, drawn anew by a load."""
    return {
        "jobs": {
            key: _pack(msgspec.structs.replace(job, shape=0, party=0)) for key, job in state.jobs.items()
        },
        "tasks": {key: _pack(task) for key, task in state.tasks.items()},
        "attempts": {
            # In the order in which they were given: of a lost lane the first is charged.
            key: _pack(msgspec.structs.replace(one, shape=0, calls=None)) + repr(one.calls).encode()
            for key, one in state.attempts.items()
        },
        "workers": {key: _pack(worker) for key, worker in state.workers.items()},
        "ledger": {
            key: pack_record(unpack_record(key[0], pack_record(record)))
            for key, record in state.ledger.items()
        },
    }


def _pack(record: msgspec.Struct) -> bytes:
    """Pack as if read back from a row: a whole number in a field for real ones is one there."""
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    return encode(msgspec.msgpack.decode(encode(record), type=type(record)))


def refold(state: State, journal: list[tuple[Clock, Fact]]) -> None:
    """Fold facts as they would be read back from a log."""
    for clock, fact in journal:
        for read in unpack_facts(pack_facts([fact])):
            apply(state, read, clock)


_SHARES = {
    "submit_one": 3,
    "change_policy": 2,
    "connect": 3,
    "ready": 4,
    "progress": 5,
    "finish": 4,
    "pause": 2,
    "repeat": 1,
    "save": 1,
    "cancel_one": 1,
    "extend_one": 1,
    "steer": 2,
    "disturb": 2,
    "doze": 1,
    "restart_worker": 1,
    "wait": 2,
    "write_rows": 1,
    "restart_hub": 1,
}
STEPS = tuple(name for name, share in _SHARES.items() for _ in range(share))
