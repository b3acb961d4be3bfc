"""A cluster made of nothing but the core: a state, a clock moved by hand, and workers that say what they are told.

Every step goes through `apply`, and the invariants are checked after each one. Facts are kept in the order in which a
hub would have logged them, so that any run can be folded again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.holding.attempts import adoptable
from dray.core.lifecycle.holding.lanes import outstanding
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.state.effects import Assign, Cancel, Effect
from dray.core.lifecycle.state.events import (
    Activity,
    ArrayExtended,
    AttemptAccepted,
    AttemptEnded,
    AttemptStarted,
    CallsEnded,
    CancelRequested,
    Clock,
    CreditSet,
    EpochStarted,
    Event,
    Fact,
    Heard,
    HoldChanged,
    JobEdited,
    JobsSubmitted,
    NewJob,
    Outcome,
    PolicyChanged,
    RequeueRequested,
    SessionClosed,
    SessionOpened,
    SlotsSeen,
    WorkerLeft,
    WorkerRegistered,
    WorkerReturned,
    is_fact,
)
from dray.core.lifecycle.state.pass_events import TurnBegan
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.core.lifecycle.timers import forget_answered, next_due_ms
from dray.core.model.capability import Capability, Device, Slots
from dray.core.model.policies.check import check_policy
from dray.core.model.policies.policy import Policy, pack_policy
from dray.core.model.records.records import Attempt, Job, Task
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import pack_spec, spec_document, unpack_spec
from dray.core.scheduling.explain.explain import explain
from dray.core.scheduling.passes.turn import take_turn

AGENT = ("calls", "gang", "job_started", "ports", "resend", "shared_gpu")
WALL_MS = 1_700_000_000_000
BEAT_MS = 10_000
E = TypeVar("E")


class Cluster:
    """One hub's core. `beating` names the workers that send a heartbeat every ten seconds while time passes."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.state = State(rules)
        self.now_ms = 0
        self.sessions = 0
        self.journal: list[tuple[Clock, Fact]] = []
        self.effects: list[Effect] = []
        self.beating: dict[str, None] = {}
        self.registrations: dict[str, WorkerRegistered] = {}
        self.fold(EpochStarted(1))
        self.now_ms = self.state.rules.start_grace_ms

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return Clock(self.now_ms, WALL_MS + self.now_ms)

    def fold(self, event: Event) -> list[Effect]:
        """Apply one event and check that everything still holds."""
        if is_fact(event):
            self.journal.append((self.clock, event))  # type: ignore[arg-type]  # a struct is a fact
        effects = apply(self.state, event, self.clock)
        found = problems(self.state)
        assert not found, f"after {event}: {found}"
        return effects

    def turn(self, *events: Event) -> list[Effect]:
        """One turn of a hub: events, timers, passes until none is cut short. Gives what leaves after the commit."""
        effects = [effect for event in events for effect in self.fold(event)]
        effects += self.fold(TurnBegan())
        while take_turn(self.state, self.clock, lambda event: effects.extend(self.fold(event)), self._reason):
            pass
        self.effects = effects
        return effects

    def advance(self, seconds: float) -> list[Effect]:
        """Let time pass: timers fire when they are due, beating workers beat."""
        end_ms = self.now_ms + round(seconds * 1000)
        effects: list[Effect] = []
        next_beat_ms = self.now_ms + BEAT_MS
        while True:
            forget_answered(self.state)
            timer_ms = next_due_ms(self.state)
            at_ms = min(end_ms, next_beat_ms, timer_ms if timer_ms is not None else end_ms)
            self.now_ms = max(self.now_ms, at_ms)
            beats: list[Event] = []
            if at_ms >= next_beat_ms:
                next_beat_ms += BEAT_MS
                beats = [event for worker in self.beating for event in self.sign_of_life(worker)]
            effects += self.turn(*beats)
            if self.now_ms >= end_ms:
                return effects

    def _reason(self, job_id: str) -> str:
        return explain(self.state, self.state.jobs[job_id]).summary

    def govern(self, **policy: Any) -> list[Effect]:
        """Put a policy in force, as a file would say it."""
        return self.turn(PolicyChanged(pack_policy(check_policy(policy)), origin="test"))

    # --- users --------------------------------------------------------------------------------------------------------

    def submit(self, job_id: str = "job", user: str = "ann", **spec: Any) -> list[Effect]:
        raw = {"command": ["true"], **spec}
        packed = pack_spec(check_spec(raw))
        return self.turn(JobsSubmitted((NewJob(job_id, user, packed, tuple(raw.get("after", ()))),)))

    def hold(self, job_id: str = "job", on: bool = True) -> list[Effect]:
        return self.turn(HoldChanged(job_id, on, "bob"))

    def edit(self, job_id: str = "job", **changes: Any) -> list[Effect]:
        """Lay changes over a job's spec; conditions are taken as they stand, none of them looked up."""
        raw = {**spec_document(unpack_spec(self.job(job_id).spec)), **changes}
        after = tuple(changes.get("after", self.job(job_id).after))
        return self.turn(JobEdited(job_id, pack_spec(check_spec(raw)), "ann", after))

    def ask_again(self, job_id: str = "job", index: int = -1) -> list[Effect]:
        return self.turn(RequeueRequested(job_id, index, "ann"))

    def extend(self, job_id: str, count: int, close: bool = False) -> list[Effect]:
        return self.turn(ArrayExtended(job_id, count, close))

    def cancel(self, job_id: str, index: int = -1, grace_s: float = -1) -> list[Effect]:
        return self.turn(CancelRequested(job_id, index, "ann", grace_s))

    def rule(self, **sections: Any) -> list[Effect]:
        """Put a policy in force."""
        return self.turn(PolicyChanged(pack_policy(Policy(**sections)), "applied", "ann"))

    def serve_all(self, worker: str = "w1", most: int = 50) -> list[str]:
        """Run and end what a worker with one slot holds, one by one; gives the jobs in their order."""
        order: list[str] = []
        while len(order) < most and (held := self.held(worker)):
            (uid,) = held
            order.append(self.attempt(uid).job_id)
            self.run(uid)
            self.end(uid)
        return order

    # --- workers ------------------------------------------------------------------------------------------------------

    def join(self, worker: str = "w1", credit: int = 0, *, beats: bool = True, **offer: Any) -> list[Effect]:
        """Register a worker on a new session, and let it poll where it has credit to give."""
        effects = self.register(worker, **offer)
        if beats:
            self.beating[worker] = None
        return effects + (self.poll(worker, credit) if credit else [])

    def register(
        self,
        worker: str,
        *,
        active: Iterable[Activity] = (),
        finished: Iterable[Outcome] = (),
        incarnation: str = "",
        journal_id: str = "j1",
        **offer: Any,
    ) -> list[Effect]:
        """Say what a worker is; without an offer it is what it was the last time."""
        self.sessions += 1
        known = self.registrations.get(worker)
        event = registration(worker, **offer) if offer or known is None else known
        self.registrations[worker] = event
        said = {name: getattr(event, name) for name in WorkerRegistered.__struct_fields__}
        said |= {"session": self.sessions, "active": tuple(active), "finished": tuple(finished)}
        said |= {"incarnation": incarnation, "journal_id": journal_id}
        opened = self.turn(SessionOpened(worker, self.sessions, incarnation))
        if self.state.presence[worker].session != self.sessions:
            return opened
        return opened + self.turn(WorkerRegistered(**said))

    def sign_of_life(self, worker: str) -> list[Event]:
        silent = worker in self.state.workers and self.state.workers[worker].silent
        return [Heard(worker), WorkerReturned(worker)] if silent else [Heard(worker)]

    def poll(self, worker: str, credit: int = 1, **in_use: int) -> list[Effect]:
        slots = self.state.presence[worker].slots
        slots = Slots(
            slots.batch_total, in_use.get("batch", 0), slots.service_total, in_use.get("service", 0)
        )
        return self.turn(*self.sign_of_life(worker), CreditSet(worker, credit, slots))

    def report_slots(self, worker: str, slots: Slots) -> list[Effect]:
        return self.turn(*self.sign_of_life(worker), SlotsSeen(worker, slots))

    def break_socket(self, worker: str) -> list[Effect]:
        self.beating.pop(worker, None)
        return self.turn(SessionClosed(worker, self.state.presence[worker].session))

    def leave(self, worker: str) -> list[Effect]:
        self.beating.pop(worker, None)
        session = self.state.presence[worker].session
        return self.turn(SessionClosed(worker, session), WorkerLeft(worker))

    def accept(self, uid: str) -> list[Effect]:
        attempt = self.state.attempts[uid]
        said = self.sign_of_life(attempt.worker)
        return self.turn(*said, AttemptAccepted(attempt.worker, attempt.job_id, self.spelled(attempt), uid))

    def accept_all(self, worker: str) -> None:
        for uid in self.held(worker):
            self.run(uid)

    def start(self, uid: str) -> list[Effect]:
        attempt = self.state.attempts[uid]
        said = self.sign_of_life(attempt.worker)
        return self.turn(
            *said, AttemptStarted(attempt.worker, attempt.job_id, self.spelled(attempt), uid, pid=7)
        )

    def run(self, uid: str) -> None:
        """Accept and start."""
        self.accept(uid)
        self.start(uid)

    def end(self, uid: str, said: str = "succeeded", **more: Any) -> list[Effect]:
        attempt = self.state.attempts[uid]
        return self.turn(
            *self.sign_of_life(attempt.worker), AttemptEnded(attempt.worker, self.outcome(uid, said, **more))
        )

    def outcome(self, uid: str, said: str = "succeeded", *, named: bool = True, **more: Any) -> Outcome:
        """How an attempt ended; `named` False leaves the uid out, as base-only peers do."""
        attempt = self.state.attempts[uid]
        code = 0 if said == "succeeded" else 1 if said == "failed" else None
        given = {"exit_code": code, **more}
        return Outcome(attempt.job_id, self.spelled(attempt), uid if named else "", said, **given)

    def active(self, uid: str, *, named: bool = True, running: bool = True) -> Activity:
        """One line of a worker's list of what it runs, read as a hub does."""
        attempt = self.state.attempts[uid]
        over = not attempt.phase.live and not adoptable(self.state, attempt)
        name = uid if named or over else ""
        return Activity(attempt.job_id, self.spelled(attempt), name, over=over, running=running)

    # --- calls --------------------------------------------------------------------------------------------------------

    def map(self, job_id: str = "job", count: int = 0, user: str = "ann", **spec: Any) -> list[Effect]:
        """Submit so many calls of one function; `open` takes more."""
        more = {"open": True} if spec.pop("open", False) else {}
        limit = {"limit": spec.pop("limit")} if "limit" in spec else {}
        array = {"first": 0, "last": count - 1, **more, **limit}
        return self.submit(job_id, user, command=[], function=b"f", array=array, **spec)

    def lanes(self, job_id: str = "job") -> list[Attempt]:
        """The live lanes of a job in the order in which they were opened."""
        return [self.state.attempts[uid] for uid in self.state.live_of.get(job_id, ())]

    def calls(self, uid: str) -> dict[int, int]:
        """What is outstanding in a lane."""
        return dict(self.attempt(uid).calls or {})

    def frame(
        self,
        uid: str,
        index: Iterable[int],
        said: str | tuple[str, ...] = "succeeded",
        wall_us: int = 0,
        no: Iterable[int] | None = None,
        **details: tuple[str, str],
    ) -> list[Event]:
        """A worker's frame of ended calls, sifted as a hub does; without numbers by those that they have now."""
        lane, given = self.attempt(uid), list(index)
        numbers = [abs((lane.calls or {}).get(one, 1)) for one in given] if no is None else list(no)
        found = outstanding(self.state, lane.worker, uid, given, numbers)
        words = said if isinstance(said, str) else tuple(said[place] for place in found.places)
        known = tuple(given[place] for place in found.places)
        if not known and not found.gone:
            return []
        told = {int(key.lstrip("c")): value for key, value in details.items()}
        return [CallsEnded(lane.worker, uid, known, words, wall_us, told, found.gone)]

    def returns(self, uid: str, index: Iterable[int], said: Any = "succeeded", **more: Any) -> list[Effect]:
        """A worker tells of calls that ended."""
        worker = self.attempt(uid).worker
        return self.turn(*self.sign_of_life(worker), *self.frame(uid, index, said, **more))

    def spelled(self, attempt: Attempt) -> int:
        """A task's index as its id spells it."""
        return self.state.jobs[attempt.job_id].spelled(attempt.index)

    # --- looking ------------------------------------------------------------------------------------------------------

    def job(self, job_id: str = "job") -> Job:
        return self.state.jobs[job_id]

    def task(self, job_id: str = "job", index: int = 0) -> Task:
        return self.state.tasks[job_id, index]

    def current(self, job_id: str = "job", index: int = 0) -> str:
        """The uid of a task's current attempt, empty where it has none."""
        task = self.state.tasks.get((job_id, index))
        return task.current if task is not None else ""

    def attempt(self, uid: str) -> Attempt:
        return self.state.attempts[uid]

    def held(self, worker: str) -> list[str]:
        return list(self.state.held.get(worker, ()))

    def free_cards(self, worker: str) -> int:
        return self.state.columns.get("free_gpu", self.state.columns.row_of[worker])

    def blockers(self, job_id: str = "job") -> list[tuple[str, str, str]]:
        """What stands in the way: the rule, what is needed, what is there. Wording may change, this not."""
        found = explain(self.state, self.job(job_id)).blockers
        return [(blocker.kind, blocker.need, blocker.have) for blocker in found]

    def summary(self, job_id: str = "job") -> str:
        return explain(self.state, self.job(job_id)).summary


def registration(
    worker: str,
    *,
    cpus: float = 8,
    memory_gb: float = 16,
    gpus: int = 0,
    vram_gb: float = 0,
    gpu_type: str = "",
    backend: str = "",
    devices: tuple[Device, ...] = (),
    labels: dict[str, str] | None = None,
    slots: Slots | None = None,
    batch: int = 8,
    service: int = 0,
    features: tuple[str, ...] = AGENT,
    base: bool = False,
    resources: dict[str, int] | None = None,
    ports: int = -1,
    ends_at_ms: int = 0,
) -> WorkerRegistered:
    """A worker's own words about itself; `base` leaves all features out."""
    capability = Capability(
        gpu_backend=backend or ("nvidia" if gpus else "cpu"),
        gpu_count=gpus,
        gpu_type=gpu_type or ("A100" if gpus else ""),
        vram_gb=vram_gb,
        cpu_count=cpus,
        memory_gb=memory_gb,
        hostname=worker,
    )
    return WorkerRegistered(
        worker=worker,
        session=0,
        capability=capability,
        devices=devices,
        labels=labels or {},
        slots=slots or Slots(batch_total=batch, service_total=service),
        features=() if base else features,
        base=base,
        resources=resources or {},
        ports=ports,
        ends_at_ms=ends_at_ms,
    )


def only(effects: Iterable[Effect], kind: type[E]) -> list[E]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def cancels(effects: Iterable[Effect]) -> list[tuple[str, str]]:
    """Who is asked to stop, and why."""
    return [(effect.uid, effect.reason) for effect in only(effects, Cancel)]


def assigned(effects: Iterable[Effect]) -> list[str]:
    """The uids that are sent out."""
    return [effect.uid for effect in only(effects, Assign)]
