"""What must hold in every world, judged by what truly ran and what was answered, not by what the hub believes.

Watches every hub of a history as it commits and sends; the final account is settled in `settlement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from dray.core.lifecycle.invariants import job_problems, problems
from dray.core.lifecycle.state.events import (
    Fact,
    IdleReached,
    PlanDecided,
    PolicyChanged,
    WaitTimedOut,
    WorkerDrained,
    WorkerLeft,
)
from dray.core.lifecycle.state.lines import BucketKey
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.policies.policy import IdlePolicy, unpack_policy
from dray.core.model.records.records import Attempt, Job, JobState, Phase, Task
from dray.core.model.records.worker import Worker
from dray.core.model.specs.dependency import read_need
from dray.core.model.specs.spec import unpack_spec
from dray.core.scheduling.turns.ranks import stands
from dray.hub.store.base import Turn
from dray.hub.store.memory import MemoryStore
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.nodes.runs import Runs
from dray.sim.faults.nodes.sockets import SimSession
from dray.sim.faults.watches.gangs import GangWatch
from dray.sim.faults.watches.kept_orders import find_misjudged, find_misplaced, find_misprotected
from dray.sim.faults.watches.larger_cards import LargerCardWatch
from dray.sim.faults.watches.overdue import find_overdue, find_stale, find_unasked, find_unstopped
from dray.sim.faults.watches.policy import PolicyWatch
from dray.sim.faults.watches.programs.workloads import WorkloadWatch
from dray.sim.faults.watches.quarantines import ProviderWatch, QuarantineWatch
from dray.sim.faults.watches.room import RoomWatch
from dray.sim.faults.watches.services import ServiceWatch
from dray.sim.faults.watches.wake_ups import UseWatch, find_overlooked
from dray.sim.faults.world.network import Message
from dray.sim.faults.world.world import World

FULL_EVERY = 50
# Hub time gains a moment at each restart.
CLOCK_SLACK_MS = 1000
# Nor does a hub that is behind with its work look at a silence later than that.
LATE_SLACK_MS = 10_000
MARK = "EDIT"


class Account(msgspec.Struct):
    """What peers were told and what was recorded: all of it must still be so at the end. `tries`: how each attempt of
    a task, by its number, came out, and how much of its run time was saved.
    """

    acknowledged: dict[str, None] = {}
    cancelled: dict[str, None] = {}
    grown: dict[str, int] = {}
    results: dict[tuple[str, int], str] = {}
    recorded: dict[str, None] = {}
    tries: dict[tuple[str, int, int], tuple[str, int]] = {}
    held: dict[str, None] = {}
    edited: dict[str, int] = {}
    calls: dict[str, int] = {}
    outgrown: dict[str, int] = {}
    workloads: dict[str, None] = {}

    def copy(self) -> Account:
        """As it stands now, for a backup."""
        return Account(*(dict(getattr(self, name)) for name in self.__struct_fields__))


def counts(worker: Worker) -> bool:
    """Whether a worker's silence says something: by a drain a person says that it is gone, a quarantine does not."""
    return not (worker.left or (worker.draining and not worker.faults))


class Holder(Protocol):
    """A machine, asked what it truly has."""

    name: str

    def still_has(self, uid: str) -> bool: ...


class HubFacts(Protocol):
    """Whoever follows several hubs."""

    assigned: dict[str, None]

    def took(self, number: int, machine: Any, taken: Any) -> None: ...
    def leaves(self, life: HubLife) -> None: ...
    def turned(self, life: HubLife) -> None: ...
    def kept(self, life: HubLife, turn: Turn) -> None: ...
    def rewind(self) -> None: ...
    def settle(self, folded: State) -> None: ...


class CallFacts(Protocol):
    """Whoever follows the calls."""

    def logged(self, life: HubLife, facts: list[Fact], held: Mapping[str, None]) -> None: ...
    def end_of(self, state: State, store: MemoryStore, job: Job, index: int) -> JobState: ...
    def settle(self, store: MemoryStore, job: Job, least: int) -> None: ...


class Checker:
    """Watches one site through all its hubs."""

    def __init__(self, world: World, hub: HubNode, runs: Runs) -> None:
        self._world, self._hub, self._runs = world, hub, runs
        self._turns = 0
        self.account = Account()
        self.cancel_asked: dict[str, None] = {}
        self.shared_names: dict[str, None] = {}
        self.machines: Sequence[Holder] = ()
        self._placed: dict[str, None] = {}
        self._over_ms: dict[tuple[str, str], int] = {}
        self._lost: dict[str, None] = {}
        self._ever_lost: dict[str, None] = {}
        # By the hub that took it back: one that has just lost its store to that one owes its workers nothing.
        self._revoked: dict[int, list[str]] = {}
        self._taken_back: dict[str, None] = {}
        self._turned: dict[str, None] = {}
        self._asked_to_stop: dict[str, None] = {}
        self.gangs = GangWatch(world, runs)
        self.gangs.shared_names = self.shared_names
        self._policy, self._rooms = PolicyWatch(world), RoomWatch(world)
        self._quarantines = QuarantineWatch(world)
        self._larger_cards = LargerCardWatch(world)
        self._providers = ProviderWatch(world)
        self.services = ServiceWatch(world, runs)
        self._uses = UseWatch(world)
        self.workloads = WorkloadWatch(world)
        self.calls: CallFacts | None = None
        self.hubs: HubFacts | None = None
        self._owners: dict[tuple[int, str], SimSession] = {}
        self._takeovers: dict[tuple[int, str], list[int]] = {}
        hub.witness = self

    # --- several hubs -----------------------------------------------------------------------------------------------

    def took(self, number: int, machine: Any, taken: Any) -> None:
        """A hub is about to lead."""
        if self.hubs is not None:
            self.hubs.took(number, machine, taken)

    def leaves(self, life: HubLife) -> None:
        """Something is sent or answered."""
        if self.hubs is not None:
            self.hubs.leaves(life)

    def kept(self, life: HubLife, turn: Turn) -> None:
        """A turn is durable."""
        if self.hubs is not None:
            self.hubs.kept(life, turn)

    # --- what leaves ------------------------------------------------------------------------------------------------

    def sent(self, life: HubLife, session: SimSession, envelope: Message) -> None:
        """Nothing leaves before the commit that justifies it, and only the session that stands is spoken to."""
        payload = envelope.get("payload", {})
        if envelope["type"] in ("job_assign", "job_go", "job_cancel"):
            life.told_uids.add(payload["attempt"]["uid"] if "spec" in payload else payload["attempt"])
        if envelope["type"] == "job_assign":
            uid = payload["attempt"]["uid"]
            if uid not in self._placed:
                self._world.fail(f"attempt {uid} was sent to {session.worker} and is not committed")
            self._check_spec(life.state, life.state.attempts[uid], payload["spec"])
            if self.hubs is not None and not life.astray:
                self.hubs.assigned[uid] = None
        elif envelope["type"] == "job_go":
            self.gangs.sent(payload["attempt"])
        elif envelope["type"] == "job_cancel":
            self._asked_to_stop[payload["attempt"]] = None
            self._runs.stoppers[payload["attempt"]] = life
            attempt = life.state.attempts.get(payload["attempt"])
            # One call of a lane may be asked to stop by itself: its lane goes on.
            if attempt is None or payload["task_id"] == life.state.spell(attempt):
                life.stop_asked_ms[payload["attempt"]] = self._world.now_ms
        elif envelope["type"] == "ack":
            # A lease runs from the sending of the heartbeat that was answered: one answer too many renews it unheard.
            life.beats[session.worker] -= payload["re"] == "heartbeat"
            if life.beats[session.worker] < 0:
                self._world.fail(f"{session.worker} was answered more heartbeats than it sent")
            for uid, verdict in payload.get("results", {}).items():
                if verdict == "recorded" and not life.astray:
                    self.account.recorded[uid] = None

    def alarmed(self, life: HubLife, text: str) -> None:
        """People were told."""
        self._world.counts["alarm"] += 1
        for (number, worker), times in self._takeovers.items():
            if number == life.number and f"as worker {worker}:" in text:
                times.clear()

    # --- what is committed ------------------------------------------------------------------------------------------

    def logged(self, life: HubLife, facts: list[Fact]) -> None:
        """A plan that is folded in at once holds nothing that is dropped; a held job does not time out."""
        if self.calls is not None:
            self.calls.logged(life, facts, self.account.held)
        self.services.logged(life, facts)
        self.workloads.logged(life, facts)
        self.cancel_asked |= self.workloads.cancelled
        self._turned = {f.worker: None for f in facts if isinstance(f, WorkerDrained | WorkerLeft)}
        rules = life.policy_then.idle
        for fact in facts:
            if isinstance(fact, PlanDecided):
                for placement in fact.placements:
                    if placement.uid not in life.state.attempts:
                        self._world.fail(f"the plan holds {placement}, which was dropped at once")
            elif isinstance(fact, PolicyChanged):
                rules = unpack_policy(fact.policy).idle
            elif isinstance(fact, IdleReached) and fact.step:
                self._check_idle(rules, fact)
            elif isinstance(fact, WaitTimedOut) and fact.job_id in self.account.held:
                self._world.fail(f"job {fact.job_id} is held, and its scheduling timeout ran out")

    def _check_idle(self, rules: IdlePolicy, fact: IdleReached) -> None:
        """Only what its own worker has seen idle for so long is called so, and only as the policy says by then."""
        self._world.counts[f"idle: {fact.step}"] += 1
        seen_s = self._runs.idle_s.get(fact.uid, 0.0)
        if not 0 < fact.limit_s <= fact.idle_s <= seen_s or fact.limit_s != rules.limit_s(fact.step):
            self._world.fail(f"{fact} was committed, its worker saw {seen_s:g} s, and {rules} are in force")

    def committed(self, life: HubLife) -> None:
        """A result that was recorded once stays as it is, whoever dies in between."""
        state, results = life.state, self.account.results
        for key in state.touched.tasks:
            task = state.tasks.get(key)
            if task is not None and task.state.final:
                result = f"{task.state} {task.exit_class} {task.last_uid} {task.failures} {task.losses}"
                if results.setdefault(key, result) != result:
                    self._world.fail(f"task {key} was {results[key]!r} and is now {result!r}")
        touched = [state.attempts[uid] for uid in state.touched.attempts if uid in state.attempts]
        for attempt in touched:
            # What was asked to go and queued again has not failed, whatever its program made of the signal.
            how = {"time_limit": "failed", "requeued": "requeued"}.get(attempt.cancel, attempt.phase.value)
            how = how if attempt.phase is not Phase.LOST else "lost"
            self.account.tries[attempt.job_id, attempt.index, attempt.no] = (how, attempt.saved_ms)
        # One that stands behind another takes no room: its worker's slots are watched where it runs.
        fresh = [
            a for a in touched if a.uid not in self._placed and a.phase is Phase.ASSIGNED and not a.behind
        ]
        self._policy.committed(life, touched, fresh)
        self._rooms.committed(life, fresh)
        self._quarantines.committed(life, touched, fresh)
        self._larger_cards.committed(life, touched, fresh, self.account.outgrown)
        self._providers.committed(life, touched)
        self.services.committed(life, touched)
        self._uses.committed(life, fresh)
        self.workloads.committed(life, touched, fresh)
        for attempt in touched:
            if not attempt.phase.live and attempt.phase is not Phase.LOST:
                self._over_ms.setdefault((attempt.worker, attempt.uid), self._world.now_ms)
            self._look_at(life, attempt)
            self._check_save(state, attempt)
        for key in state.touched.tasks:
            task = state.tasks.get(key)
            job = state.jobs.get(key[0])
            if task is not None and task.current and job is not None and not job.gang and not job.calls:
                self._check_budget(state, task)

    def _check_save(self, state: State, attempt: Attempt) -> None:
        """What is recorded as saved was saved, by that very attempt, within the time that it truly ran."""
        if attempt.lane or (not attempt.saved_ms and not attempt.saved_step):
            return
        runs = [run for run in self._runs.of_task.get(state.spell(attempt), ()) if run.uid == attempt.uid]
        if not any(attempt.saved_step in run.saves for run in runs):
            self._world.fail(f"attempt {attempt.uid} is said to have saved step {attempt.saved_step}: {runs}")
        longest_ms = max(self._world.now_ms - run.began_ms for run in runs)
        if not 0 <= attempt.saved_ms <= longest_ms + CLOCK_SLACK_MS:
            self._world.fail(f"attempt {attempt.uid} saved {attempt.saved_ms} ms of {longest_ms} ms")

    def _check_budget(self, state: State, task: Task) -> None:
        """An attempt may run for the limit less what was saved before it; a failure starts the count anew."""
        attempt, job = state.attempts[task.current], state.jobs[task.job_id]
        used_ms = 0
        for number in range(attempt.no - 1, 0, -1):
            how, saved_ms = self.account.tries[attempt.job_id, attempt.index, number]
            if how == "failed" or job.service:
                break
            used_ms += saved_ms
        left_ms = max(1000, job.limit_ms - used_ms)
        if task.used_ms != used_ms or (job.limit_ms and attempt.limit_ms != left_ms):
            self._world.fail(
                f"attempt {attempt.uid} may run {attempt.limit_ms} ms: {used_ms} ms of {job.limit_ms} ms were "
                f"saved before it, and its task counts {task.used_ms} ms"
            )

    def _look_at(self, life: HubLife, attempt: Attempt) -> None:
        if attempt.generation:
            self.gangs.committed(life, attempt)
        if attempt.uid not in self._placed:
            self._placed[attempt.uid] = None
            self._check_placement(life.state, attempt)
        if attempt.phase is Phase.REVOKED and attempt.uid not in self._taken_back:
            self._taken_back[attempt.uid] = None
            self._revoked.setdefault(life.number, []).append(attempt.uid)
        if attempt.phase is Phase.LOST and attempt.uid not in self._lost:
            self._lost[attempt.uid] = self._ever_lost[attempt.uid] = None
            if attempt.error.startswith("silent for"):
                self._check_loss(life, attempt)
            elif attempt.error.startswith("its worker came back without it"):
                self._check_missing(life.state, attempt)
        elif attempt.phase is not Phase.LOST:
            self._lost.pop(attempt.uid, None)

    def _check_placement(self, state: State, attempt: Attempt) -> None:
        """A new attempt goes where there is room, on a worker that takes work, and not against a cancel."""
        if attempt.job_id in self.account.cancelled:
            self._world.fail(f"attempt {attempt.uid} was made for job {attempt.job_id}, which was cancelled")
        self._check_steering(state, attempt)
        if attempt.phase is not Phase.ASSIGNED:
            return
        worker, presence = state.workers[attempt.worker], state.presence[attempt.worker]
        if worker.draining:
            self._world.fail(f"attempt {attempt.uid} was placed on {worker.id}, which is drained")
        if attempt.behind:
            return
        asks = [
            state.ask(other) for uid in state.held[worker.id] if not (other := state.attempts[uid]).yielded
        ]
        slots = {"batch": presence.slots.batch_total, "service": presence.slots.service_total}
        pool = state.ask(attempt).pool
        taken = sum(1 for ask in asks if ask.pool == pool)
        cpu = sum(ask.cpu_milli for ask in asks)
        if taken > slots[pool] > 0 or cpu > round(worker.capability.cpu_count * 1000):
            self._world.fail(
                f"attempt {attempt.uid} makes {taken} {pool} tasks and {cpu} millicores on {worker.id}, which has "
                f"{slots[pool]} slots and {worker.capability.cpu_count} cores"
            )

    def _check_steering(self, state: State, attempt: Attempt) -> None:
        """Nothing starts against a hold that was answered, or before what it waits for has ended as it must."""
        if attempt.job_id in self.account.held:
            self._world.fail(f"attempt {attempt.uid} was made for job {attempt.job_id}, which is held")
        for need in map(read_need, unpack_spec(state.jobs[attempt.job_id].spec).after):
            other = state.jobs.get(need.job_id) or self._hub.store.find_job(need.job_id)
            how = other.state if other is not None else JobState.PENDING
            if other is not None and need.task >= 0 and self.calls is not None:
                how = self.calls.end_of(state, self._hub.store, other, need.task)
            succeeded, ended = how is JobState.SUCCEEDED, how.final
            if not {"ok": succeeded, "any": ended, "fail": ended and not succeeded}[need.kind]:
                self._world.fail(
                    f"attempt {attempt.uid} of job {attempt.job_id} was made before {need} was met: {other}"
                )
        if len(attempt.devices) != state.ask(attempt).gpus:
            self._world.fail(f"attempt {attempt.uid} has cards {attempt.devices} for {state.ask(attempt)}")

    def _check_spec(self, state: State, attempt: Attempt, sent: Message) -> None:
        """A worker gets the spec as last edited, by the alternative that holds its place."""
        marked = int(sent["env"].get(MARK, 0))
        if marked < self.account.edited.get(attempt.job_id, 0):
            self._world.fail(f"attempt {attempt.uid} was sent as of edit {marked}: {self.account.edited}")
        self.services.sent(state, attempt, sent)
        ask = state.ask(attempt)
        if (sent.get("cpu_milli", 0), sent["gpu_count"]) != (ask.cpu_milli, ask.gpus):
            self._world.fail(f"attempt {attempt.uid} was sent as {sent} and holds {ask}")
        if "BY" in sent["env"] and sent["env"]["BY"] != str(attempt.variant):
            self._world.fail(f"attempt {attempt.uid} runs by alternative {attempt.variant}, sent was {sent}")

    def _check_missing(self, state: State, attempt: Attempt) -> None:
        """What a worker still has is not given up when it registers again; what it never accepted is sent again."""
        if attempt.worker in self.shared_names:
            return
        asked = attempt.cancel and state.workers[attempt.worker].base
        if not attempt.accepted_at_ms and not attempt.lane and not asked:
            self._world.fail(
                f"attempt {attempt.uid} was never accepted, and given up without a word about it"
            )
        if attempt.cancel:
            return
        for node in self.machines:
            if node.name == attempt.worker and node.still_has(attempt.uid):
                self._world.fail(f"attempt {attempt.uid} was given up, and {node.name} still has it")

    def _check_loss(self, life: HubLife, attempt: Attempt) -> None:
        """No worker is given up before its time, right after a start, or with most of its peers."""
        rules, now_ms = life.state.rules, life.turn_ms
        age_ms = now_ms - life.began_ms
        silent_ms = now_ms - life.heard_then.get(attempt.worker, life.began_ms)
        spec = unpack_spec(life.state.jobs[attempt.job_id].spec)
        patience_ms = rules.lost_service_ms if spec.type == "service" else rules.lost_ms
        # A machine that was thrown out by its twin may have spoken on a session that no longer counts by then.
        early = silent_ms < patience_ms and attempt.worker not in self.shared_names
        if early or age_ms < rules.start_grace_ms:
            self._world.fail(
                f"attempt {attempt.uid} was given up after {silent_ms} ms of silence of {attempt.worker}, "
                f"{age_ms} ms after the hub's start"
            )
        steady_for_ms = now_ms - life.steady_ms
        # What came during a commit that took long counts from when the hub could take it in.
        heeded_ms = life.heeded_ms.get(attempt.worker, life.began_ms)
        late_ms = min(now_ms - heeded_ms - patience_ms, age_ms - rules.start_grace_ms, steady_for_ms)
        # While the brake is on a hub looks now and then whether it still must be.
        braked = life.braked_ms >= 0 and now_ms - life.braked_ms < rules.suspect_ms + LATE_SLACK_MS
        if late_ms > LATE_SLACK_MS and not braked and attempt.worker not in self.shared_names:
            self._world.fail(f"attempt {attempt.uid} was given up {late_ms} ms after it could have been")
        if attempt.worker in life.unread:
            self._world.fail(f"attempt {attempt.uid} was given up with words of {attempt.worker} unread")
        if spec.overlap == "fenced" and attempt.worker not in self.shared_names:
            self._check_lease(life.state.spell(attempt), attempt.uid)
        # A drain or a resume in the very turn may have come after the judgement: it was right before or it is now.
        workers = life.state.workers.values()
        # With a slow store the hub takes in later what it heard, and counts from there; who has yet to be read spoke.
        silent = {
            worker: now_ms - life.heeded_ms.get(worker, life.began_ms)
            for worker in life.state.workers
            if worker not in life.unread
        }
        if all(
            self._are_braked(rules, [w for w in workers if (w.id in changed) != counts(w)], silent)
            for changed in ((), self._turned)
        ):
            self._world.fail(f"attempt {attempt.uid} was given up while most others fell silent: {silent}")

    def _are_braked(self, rules: Rules, present: list[Worker], silent: dict[str, int]) -> bool:
        gone = {w.id: ms for w in present if (ms := silent.get(w.id, 0)) >= rules.unknown_ms}
        # Of two machines under one name the one that was refused has spoken too, and that does not count.
        known = [ms for worker, ms in gone.items() if worker not in self.shared_names]
        fresh = [ms for ms in known if ms < rules.unknown_ms + rules.brake_window_ms]
        return len(gone) >= rules.brake_min and len(fresh) > rules.brake_share * len(present)

    def _check_lease(self, task_id: str, uid: str) -> None:
        """What is fenced is gone by the time that it is given up: the lease runs out first, heard or not."""
        for run in self._runs.of_task.get(task_id, ()):
            if run.uid == uid and run.ended_ms < 0 and not run.stranger:
                self._world.fail(f"fenced {run} was given up and goes on")

    # --- what a turn leaves -----------------------------------------------------------------------------------------

    def turned(self, life: HubLife) -> None:
        """Touched jobs after every turn, everything from time to time."""
        state = life.state
        self._turns += 1
        if self.hubs is not None:
            self.hubs.turned(life)
        found = [problem for job_id in state.touched.jobs for problem in job_problems(state, job_id)]
        self._watch_names(life)
        found += [*self._find_left_behind(life), *find_unasked(life), *find_stale(life)]
        found += self.workloads.turned(life)
        found += find_unstopped(life, self._over_ms)
        found += [*self._rooms.turned(life), *self._rooms.find_idle(life), *self._rooms.find_impossible(life)]
        if self._rooms.is_changed(state):
            found += find_overlooked(life)
        for worker, presence in state.presence.items():
            # Each session asks for itself: what was asked on one before it is void.
            if presence.credit > (asked := life.asked.get(presence.session, 0)):
                found.append(f"worker {worker} has a credit of {presence.credit} and asked for {asked}")
        if not found and self._turns % FULL_EVERY == 0:
            found = problems(state) + find_overdue(life, self._runs) + find_overlooked(life)
            found += find_misjudged(state)
            found += find_misplaced(state)
            found += find_misprotected(state)
            self._check_lines(state)
        if found:
            self._world.fail("; ".join(found[:5]))

    def _find_left_behind(self, life: HubLife) -> list[str]:
        """An assignment that is taken back is taken from its worker in the same turn, if it has a session."""
        found = []
        for uid in self._revoked.pop(life.number, ()):
            attempt = life.state.attempts.get(uid)
            presence = life.state.presence.get(attempt.worker) if attempt is not None else None
            reachable = presence is not None and presence.session in life.sessions.open
            if reachable and uid not in self._asked_to_stop:
                found.append(f"attempt {uid} was taken back, and its worker was not told")
        return found

    def _watch_names(self, life: HubLife) -> None:
        """Two machines that keep taking one id from each other are both refused. An id whose session is over was free
        to take, also where that ended in this very turn.
        """
        for worker in self.shared_names:
            presence = life.state.presence.get(worker)
            session = life.sessions.open.get(presence.session) if presence is not None else None
            key = (life.number, worker)
            before = self._owners.pop(key, None)
            if presence is None:
                self._takeovers.pop(key, None)  # removed by a person, and all that was known of it with it
            if session is None:
                continue
            self._owners[key] = session
            if before is None or before.number not in life.sessions.open:
                continue
            if before.connection.owner != session.connection.owner:
                times = self._takeovers.setdefault(key, [])
                times.append(self._world.now_ms)
                window_ms = life.state.rules.flap_window_ms
                recent = [at for at in times if self._world.now_ms - at < window_ms]
                if len(recent) > life.state.rules.flap_takeovers:
                    self._world.fail(
                        f"two machines took {worker} from each other {len(recent)} times: {recent}"
                    )

    def _check_lines(self, state: State) -> None:
        """A task stands in one line, at one place: an edit that moved it left nothing behind that counts."""
        seen: dict[tuple[str, int], BucketKey] = {}
        for line in state.backlog.buckets:
            for entry in state.backlog.entries(line):
                if stands(state, line, entry):
                    first = seen.setdefault((entry.job_id, entry.position), line)
                    if first != line:
                        self._world.fail(f"job {entry.job_id} stands in two lines: {first} and {line}")

    def all_ended(self) -> bool:
        """Whether every job has reached its end, and of services also every process that the hub knows of."""
        state = self._hub.state
        if any(job_id in state.live_of for job_id in state.services):
            return False
        return all(job.state.final for job in state.jobs.values())

    def rewind(self, account: Account) -> None:
        """The hub was restored from a backup: what came after it is excused, and nothing else."""
        self.account = account.copy()
        self._over_ms.clear()
        # Taken back since, and lost again by the backup: that loss was looked at when it was decided.
        self._lost |= self._ever_lost
        self._runs.estrange()
        if self.hubs is not None:
            self.hubs.rewind()
        self.gangs.rewind()
        self.services.rewind()
        self._uses.rewind()
        self.workloads.rewind()
        self._policy.rewind()
        self._rooms.rewind(self._hub.state)
