"""User code that truly ran: the world's own record, which no product code reads or writes."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple, Protocol

import msgspec

from dray.core.model.ids import split_task_id
from dray.core.model.records.records import Attempt
from dray.core.model.specs.resources import WHOLE
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.world.world import World

# So many tasks given to a machine that starts none of them, within so long, are a storm.
MOST_UNSTARTED, STORM_MS = 16, 10_000
# Where messages overtake each other, some come before those that they were to come after, and go back for that alone.
MOST_ROUNDS = 100
NEVER_MS = 1 << 60
# What everything says that fails because of the machine that it runs on.
BROKEN = "No space left on device"
OUTGROWN = "torch.OutOfMemoryError: CUDA out of memory."
# The variable by which a task says how much GPU memory it takes.
NEED = "NEED_GB"
# Of these none is kept because it shows a rare bug: those stay as they were.
SIZED_WORLDS = (0.299, 0.412)
PORT_WORLDS = (0.794, 0.945)


class Execution(msgspec.Struct):
    """One run of one task on one machine. `stranger`: its hub was replaced by one that never heard of it.

    `generation` is that of a gang's member, 0 of any other task, -1 where its agent did not know it for one. `saves`
    says when it saved which step. `call`: index and number of the try of a call; its `uid` is then that of its lane.
    `yielded`: it waits for others, and has given its slot up. `ports`: those that it may listen on.
    """

    task_id: str
    uid: str
    worker: str
    machine: str
    began_ms: int
    devices: tuple[int, ...] = ()
    share: int = WHOLE
    limit_ms: int = 0
    grace_ms: int = 0
    names_attempt: bool = True
    ended_ms: int = -1
    outcome: str = ""
    stranger: bool = False
    given_up_ms: int = -1
    pool: str = "batch"
    generation: int = 0
    saves: dict[int, int] = {}
    call: tuple[int, int] = (-1, 0)
    yielded: bool = False
    ports: tuple[int, ...] = ()

    @property
    def job_id(self) -> str:
        """The job it belongs to."""
        return (split_task_id(self.task_id) or (self.task_id, -1))[0]


def has_sizes(seed: int) -> bool:
    """Whether in this world some cards are smaller than others, and some work too large for them."""
    return SIZED_WORLDS[0] < random.Random(f"card sizes 989 of {seed}").random() < SIZED_WORLDS[1]  # chance


def has_ports(seed: int) -> bool:
    """Whether in this world some work asks for ports, of which each machine has few."""
    return PORT_WORLDS[0] < random.Random(f"ports 1742 in {seed}").random() < PORT_WORLDS[1]  # chance


def card_gb(seed: int, worker: str) -> int:
    """How much memory each card of a worker has."""
    return (
        random.Random(f"cards of {worker} in {seed}").choice([16, 24, 80]) if has_sizes(seed) else 80
    )  # chance


class Behaviour(NamedTuple):
    """How one run of a task goes."""

    duration_ms: int
    state: str
    exit_code: int
    heeds_term: bool


class CallBehaviour(NamedTuple):
    """How one run of a call goes: one that yields does so for that long."""

    duration_ms: int
    state: str
    yields: bool


class CallRuns(Protocol):
    """Whoever knows how calls go; where nobody calls, no machine keeps processes ready for it."""

    on: bool

    def behave(self, task_id: str) -> CallBehaviour: ...


class NoCalls:
    """A world in which nobody calls."""

    on = False

    def behave(self, task_id: str) -> CallBehaviour:
        raise KeyError(task_id)


class GangRuns(Protocol):
    """Whoever judges how members of gangs run."""

    def begin(self, run: Execution, others: list[tuple[Execution, Attempt | None]]) -> None: ...


class Runs:
    """All executions of a world, by task and by machine."""

    def __init__(self, world: World, hub: HubNode) -> None:
        self._world, self._hub = world, hub
        self.all: list[Execution] = []
        self.of_task: dict[str, list[Execution]] = {}
        self.going: dict[str, list[Execution]] = {}
        self.slots: dict[tuple[str, str], int] = {}
        # Workers, and tasks of which they said that they failed though they never ran: base-only ones.
        self.refused: set[tuple[str, str]] = set()
        self.unstarted: dict[str, deque[int]] = {}
        self.fed_behind: set[str] = set()
        # Which hub last asked to stop an attempt.
        self.stoppers: dict[str, HubLife] = {}
        # By machine, since when its supervisor reads what it is asked; `NEVER_MS` while it stands still.
        self.reads_from_ms: dict[str, int] = {}
        # About to begin when their supervisor died: nobody can tell whether they did, and they count as if.
        self.intended: set[str] = set()
        # For how long at most its worker has seen the cards of an attempt idle.
        self.idle_s: dict[str, float] = {}
        self._restored = False
        self.gangs: GangRuns | None = None

    def begin(self, execution: Execution) -> None:
        """Note a start down; two current attempts never share more of a card than it has."""
        # What waited in a runner or for a supervisor while the hub was put back is as unheard of as what ran.
        if self._restored:
            execution.stranger = self._is_unheard(execution)
        self.all.append(execution)
        self.of_task.setdefault(execution.task_id, []).append(execution)
        going = self.going.setdefault(execution.machine, [])
        for card in execution.devices:
            current = [run for run in going if card in run.devices and self._is_current(run)]
            if self._is_current(execution) and sum(run.share for run in current) + execution.share > WHOLE:
                self._world.fail(f"card {card} of {execution.machine} is used by {current} and {execution}")
        self._check_slots(execution, going)
        for run in going:
            if shared := {*run.ports} & {*execution.ports}:
                self._world.fail(f"ports {shared} of {execution.machine} are held by {run} and {execution}")
        if execution.generation and self.gangs is not None:
            others = [run for runs in self.going.values() for run in runs if run.job_id == execution.job_id]
            self.gangs.begin(execution, [(run, self._known(run.uid)) for run in others])
        going.append(execution)

    def _known(self, uid: str) -> Attempt | None:
        return self._hub.state.attempts.get(uid) or self._hub.store.find_attempt(uid)

    def _check_slots(self, execution: Execution, going: list[Execution]) -> None:
        """A machine never runs more current tasks than it has slots, whatever its hub was told by others."""
        peers = [
            run for run in going if run.pool == execution.pool and not run.yielded and self._is_current(run)
        ]
        most = self.slots.get((execution.machine, execution.pool), 0)
        if self._is_current(execution) and len(peers) >= most:
            self._world.fail(
                f"{execution.machine} has {most} {execution.pool} slots, and runs {peers} and {execution}"
            )

    def _is_current(self, run: Execution) -> bool:
        state = self._hub.state
        attempt = state.attempts.get(run.uid)
        if attempt is None or not attempt.phase.live or attempt.worker != run.worker:
            return False
        if attempt.calls is not None:
            index, number = run.call
            return not attempt.yielded and attempt.calls.get(index) == number
        return state.spell(attempt) == run.task_id

    def end(self, execution: Execution, outcome: str) -> None:
        """Note an end down."""
        execution.ended_ms, execution.outcome = self._world.now_ms, outcome
        self.going[execution.machine].remove(execution)

    def refuse(self, worker: str, task_id: str) -> None:
        """A base-only worker could not take a task on: a failure without a run."""
        self.refused.add((worker, task_id))

    def hand_back(self, machine: str, uid: str, task_id: str) -> None:
        """A machine gives back what it did not start: now and then, or it would eat the queue.

        What was to come after others is given back with them, and whenever those take long: many at once, each seldom.
        """
        behind = uid in self.fed_behind
        most, who = (MOST_ROUNDS, f"{machine} {task_id}") if behind else (MOST_UNSTARTED, machine)
        recent = self.unstarted.setdefault(who, deque(maxlen=most))
        recent.append(self._world.now_ms)
        if len(recent) == most and (within_ms := recent[-1] - recent[0]) < STORM_MS:
            what = f"{task_id} {most} times" if behind else f"{most} tasks"
            self._world.fail(f"{machine} was given {what} within {within_ms} ms and started none")

    def may_be_stopped(self, run: Execution) -> bool:
        """Whether whoever asks to stop a run can know it: a hub whose turns are lost does, until it notices."""
        asker = self.stoppers.get(run.uid)
        return not run.stranger or (asker is not None and asker.up and asker.astray)

    def estrange(self) -> None:
        """A restored hub knows nothing of attempts made after its backup."""
        self._restored = True
        for runs in self.going.values():
            for run in runs:
                run.stranger = run.stranger or self._is_unheard(run)

    def _is_unheard(self, run: Execution) -> bool:
        """Also of a call that its lane was given after the backup: the lane is known, the call is not."""
        known = self._known(run.uid)
        return known is None or (known.calls is not None and run.call[0] not in known.calls)
