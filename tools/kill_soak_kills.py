"""Who is killed when: a schedule of kill -9 for hub, agents, supervisors and tasks, and of their restarts.

Owns the processes of the cluster while the soak runs, and the faults of the machine under them, which come and go by
the same schedule. Every choice comes from one random source. The surprising rule:
nothing waits for a restarted process to be ready, so that some are killed again before they are.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from tests.e2e.cluster import DRAY, Agent, Cluster, is_alive, wait_for
from tools.soak_faults import HUB, Machine

AGENTS = ("w1", "w2", "w3")
SLOTS = 4
LOST_S = 3.0
TIMERS = {
    "HEARTBEAT_S": "0.3",
    "SUSPECT_S": "1.0",
    "UNKNOWN_S": "1.6",
    "LOST_S": str(LOST_S),
    "LOST_SERVICE_S": str(LOST_S),
    "START_GRACE_S": "1.0",
    "ACCEPT_S": "2.0",
    "RESEND_S": "0.3,0.6,1.2",
    "BRAKE_WINDOW_S": "2.0",
    "FLAP_REFUSE_S": "2.0",
}
AGAIN_S = 0.25
AIM_S = 0.5
SETTLE_S = 30.0
AIMED_SHARE = 0.4
# A fault of the machine: the worker or the hub with a full disk, somebody who stands still, a worker without pids.
FAULTS = ("full", "frozen", "pids")
FROZEN = ("hub", "agent", "supervisor", "task")
# A supervisor that stands still for longer than a lease cannot end a fenced task in time.
STILL_SUPERVISOR_S = 0.8


class Moment(NamedTuple):
    """Something that was done to the cluster."""

    at_s: float
    what: str


class Killer:
    """Kills and restarts; `timeline` and `kills` tell what it did, `surprises` what ended by itself."""

    frozen: tuple[str, ...] = FROZEN

    def __init__(
        self,
        cluster: Cluster,
        lines: Path,
        rng: random.Random,
        settle_s: float = SETTLE_S,
        machine: Machine | None = None,
    ) -> None:
        self.cluster, self._lines, self._rng, self.machine = cluster, lines, rng, machine
        self._settle_s, self._give_up_at = settle_s, math.inf
        self.timeline: list[Moment] = []
        self.kills: Counter[str] = Counter()
        self.killed_uids: set[str] = set()
        self.surprises: list[str] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._down: set[str] = set()
        self._befallen: set[tuple[str, str]] = set()

    def start_all(self) -> None:
        """Bring everything up for the first time."""
        self.cluster.start_hub()
        for name in AGENTS:
            self._adopt(name, self.cluster.start_agent(name, SLOTS, "", *self.flags_of(name)))
        self._note("all up")

    def flags_of(self, name: str) -> tuple[str, ...]:
        """What an agent is started with beside what all have."""
        return ()

    def _adopt(self, name: str, agent: Agent) -> None:
        if self.machine is not None:
            self.machine.adopt(name, agent.pid)

    def run_round(self, span_s: float, kinds: list[str]) -> None:
        """Kill one of each kind named, at random moments within the span; restarts may fall into a later round."""
        begun = time.monotonic()
        for kind in kinds:
            self._plan(begun + self._rng.uniform(0, span_s), self._action(kind))
        self._work_until(begun + span_s)

    def settle(self) -> None:
        """No more rounds: do what is still planned, however late it is, and wait until everything is up."""
        self._give_up_at = time.monotonic() + self._settle_s
        while self._due:
            self._step(self._due[0][0])
        self._note("no kills from here on")
        try:
            wait_for(lambda: all(self._is_up(name) for name in AGENTS), f"{AGENTS} are back")
        except AssertionError as fault:
            self.surprises.append(str(fault))
        self._note("all up again")

    def _is_up(self, name: str) -> bool:
        self.look()
        with contextlib.suppress(OSError, HTTPException):
            answer = self.cluster.call("GET", f"/workers/{name}")
            return answer.status == 200 and answer.json["status"] in ("ready", "busy")
        return False

    def look(self) -> None:
        """Whatever ended without being killed is a finding, and is started again."""
        hub = self.cluster.hub
        if hub is not None and "hub" not in self._down and hub.poll() is not None:
            self.surprises.append(f"the hub ended by itself with {hub.returncode}")
            self._start_hub()
        for name in AGENTS:
            process = self.cluster.agents[name].process
            if process is not None and name not in self._down and process.poll() is not None:
                self.surprises.append(f"agent {name} ended by itself with {process.returncode}")
                self._start_agent(name)

    # --- the schedule -------------------------------------------------------------------------------------------------

    def _plan(self, at: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, action))

    def _plan_again(self, what: str, action: Callable[[], None]) -> None:
        """What was to be killed is not there just now: soon once more, but not for ever."""
        if time.monotonic() > self._give_up_at:
            self.surprises.append(f"{what} was to be killed, and there was none for {self._settle_s:g} s")
        else:
            self._plan(time.monotonic() + AGAIN_S, action)

    def _work_until(self, end: float) -> None:
        while time.monotonic() < end:
            self._step(end)

    def _step(self, end: float) -> None:
        """Do all that is due, overdue or not; then sleep until the next is, or `end`, or for a moment."""
        self.look()
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        following = min(self._due[0][0], end) if self._due else end
        time.sleep(max(0.0, min(following - time.monotonic(), AGAIN_S)))

    def _action(self, kind: str) -> Callable[[], None]:
        if kind == "hub":
            return self._kill_hub
        if kind == "task":
            return self._kill_task
        if kind in FAULTS:
            return self._fault(kind)
        name, aimed = self._rng.choice(AGENTS), self._rng.random() < AIMED_SHARE
        if kind == "agent":
            return lambda: self._kill_agent(name, aimed)
        both = self._rng.random() < 0.2
        return lambda: self._kill_supervisor(name, both, aimed)

    def _aim(self, name: str) -> None:
        """Wait until a task has just begun on this worker: its first moments are the hardest to account for."""
        mark, deadline = f" {name} begin\n".encode(), time.monotonic() + AIM_S
        with self._lines.open("rb") as file:
            file.seek(0, os.SEEK_END)
            while mark not in file.read() and time.monotonic() < deadline:
                time.sleep(0.001)

    def _pause(self, long_s: float) -> float:
        """At once, soon, or after so long that losses are decided."""
        chance = self._rng.random()
        if chance < 0.5:
            return 0.0
        return self._rng.uniform(0.05, 1.0) if chance < 0.85 else self._rng.uniform(0.5, 1.5) * long_s

    def _note(self, what: str) -> None:
        self.timeline.append(Moment(time.time(), what))

    # --- kills and restarts -------------------------------------------------------------------------------------------

    def _kill_hub(self) -> None:
        if "hub" in self._down:
            self._plan_again("the hub", self._kill_hub)
            return
        self.cluster.kill_hub()
        self.kills["hub"] += 1
        pause_s = self._pause(2.0)
        self._note(f"hub killed, back after {pause_s:.2f} s")
        self._down.add("hub")
        self._plan(time.monotonic() + pause_s, self._start_hub)

    def _start_hub(self) -> None:
        cluster = self.cluster
        words = [*DRAY, "hub", "--home", str(cluster.home), "--port", str(cluster.port)]
        cluster.hub = cluster.spawn(words, cluster.folder / "hub.log")
        self._down.discard("hub")
        self._note(f"hub started, pid {cluster.hub.pid}")

    def _kill_agent(self, name: str, aimed: bool = False) -> None:
        if name in self._down:
            self._plan_again(f"agent {name}", lambda: self._kill_agent(name, aimed))
            return
        if aimed:
            self._aim(name)
        self.cluster.agents[name].kill()
        self.kills["agent"] += 1
        pause_s = self._pause(LOST_S)
        self._note(f"agent {name} killed, back after {pause_s:.2f} s")
        self._down.add(name)
        self._plan(time.monotonic() + pause_s, lambda: self._start_agent(name))

    def _start_agent(self, name: str) -> None:
        if ("pids", name) in self._befallen:
            # Where no process can be started no agent can be either.
            self._down.add(name)
            self._plan(time.monotonic() + AGAIN_S, lambda: self._start_agent(name))
            return
        self._adopt(name, self.cluster.start_agent(name, wait=False))
        self._down.discard(name)
        self._note(f"agent {name} started, pid {self.cluster.agents[name].pid}")

    def _kill_supervisor(self, name: str, both: bool, aimed: bool) -> None:
        agent = self.cluster.agents[name]
        if aimed:
            self._aim(name)
        pid = supervisor_of(agent)
        if pid is None or (both and name in self._down):
            self._plan_again(f"the supervisor of {name}", lambda: self._kill_supervisor(name, both, aimed))
            return
        os.kill(pid, signal.SIGKILL)
        self.kills["supervisor"] += 1
        self._note(f"supervisor of {name} killed, pid {pid}")
        if both:
            self._kill_agent(name)

    def _kill_task(self) -> None:
        victim = self._choose_task()
        if victim is None:
            self._plan_again("a task", self._kill_task)
            return
        uid, pid = victim
        self.killed_uids.add(uid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills["task"] += 1
            self._note(f"task process {pid} of attempt {uid} killed")

    # --- faults of the machine ----------------------------------------------------------------------------------------

    def _fault(self, kind: str) -> Callable[[], None]:
        """Choose who meets it and for how long: mostly for a moment, sometimes until losses are decided."""
        assert self.machine is not None  # no faults are asked for without one
        machine, span_s = self.machine, self._rng.uniform(0.2, 1.5)
        if self._rng.random() < 0.3:
            span_s = self._rng.uniform(0.8, 1.5) * LOST_S
        if kind == "frozen":
            role, name = self._rng.choice(self.frozen), self._rng.choice(AGENTS)
            return lambda: self._freeze(role, name, span_s)
        name = self._rng.choice((HUB, *AGENTS) if kind == "full" else AGENTS)
        does, undoes = (machine.fill, machine.free) if kind == "full" else (machine.exhaust, machine.relieve)
        return lambda: self._befall(kind, name, span_s, does, undoes)

    def _befall(
        self, kind: str, name: str, span_s: float, does: Callable[[str], None], undoes: Callable[[str], None]
    ) -> None:
        """One at a time of a kind in a place: a second would end with the first."""
        if (kind, name) in self._befallen:
            self._plan_again(f"{name} ({kind})", lambda: self._befall(kind, name, span_s, does, undoes))
            return
        does(name)
        self.kills[kind] += 1
        self._befallen.add((kind, name))
        self._note(f"{name}: {kind} for {span_s:.2f} s")

        def undo() -> None:
            undoes(name)
            self._befallen.discard((kind, name))
            self._note(f"{name}: no longer {kind}")

        self._plan(time.monotonic() + span_s, undo)

    def _freeze(self, role: str, name: str, span_s: float) -> None:
        assert self.machine is not None  # as above
        machine, who = self.machine, role if role == HUB else f"{role} of {name}"
        pid = None if ("frozen", who) in self._befallen else self._find(role, name)
        frozen = machine.freeze(who, pid) if pid else None
        if frozen is None:
            self._plan_again(who, lambda: self._freeze(role, name, span_s))
            return
        span_s = min(span_s, STILL_SUPERVISOR_S) if role == "supervisor" else span_s
        self.kills["frozen"] += 1
        self._befallen.add(("frozen", who))
        self._note(f"{who} (pid {pid}) stands still for {span_s:.2f} s")

        def undo() -> None:
            machine.thaw(who, frozen)
            self._befallen.discard(("frozen", who))
            self._note(f"{who} (pid {pid}) goes on")

        self._plan(time.monotonic() + span_s, undo)

    def _find(self, role: str, name: str) -> int | None:
        if role == "hub":
            hub = self.cluster.hub
            return hub.pid if hub is not None and "hub" not in self._down else None
        if role == "agent":
            return self.cluster.agents[name].pid if name not in self._down else None
        if role == "supervisor":
            return supervisor_of(self.cluster.agents[name])
        task = self._choose_task()
        return task[1] if task is not None else None

    def _choose_task(self) -> tuple[str, int] | None:
        open_ = dict[str, int]()
        for line in self._lines.read_text().splitlines()[-2000:]:
            _, uid, written, _, word = line.split()
            if word == "begin":
                open_[uid] = int(written)
            elif word == "end":
                open_.pop(uid, None)
        choices = sorted(open_.items())
        self._rng.shuffle(choices)
        for uid, pid in choices:
            mark = f"DRAY_ATTEMPT_UID={uid}\0".encode()
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes() and is_alive(pid):
                    return uid, pid
        return None


def supervisor_of(agent: Agent) -> int | None:
    """The living supervisor of an agent's home; None where there is none just now."""
    try:
        pid = agent.supervisor_pid
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(agent.home).encode() in words and is_alive(pid) else None
