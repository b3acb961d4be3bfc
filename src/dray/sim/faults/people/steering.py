"""The people who steer: they hold and release jobs, let jobs wait for others, edit what waits, queue again what runs.

Only in a share of the worlds, and by a generator of their own: the others stay as they were. What was answered goes
into the checker's account, which judges every later placement by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dray.core.model.specs.dependency import read_need
from dray.errors import Conflict, InvalidSpec, NotFound
from dray.sim.faults.nodes.hub import HubNode
from dray.sim.faults.nodes.hub_life import HubLife
from dray.sim.faults.watches.checker import MARK, Checker
from dray.sim.faults.world.pending import Pending
from dray.sim.faults.world.world import World

SHARE = 0.6
RELEASE_EVERY_MS = 3000


class Steering:
    """Draws what people do to jobs after, or with, their submit."""

    def __init__(self, world: World, hub: HubNode, checker: Checker) -> None:
        self._world, self._hub, self._checker = world, hub, checker
        self._rng = random.Random(f"steering {world.seed}")  # a simulation's chance, no secret
        self._one = random.Random(
            f"needs {world.seed}"
        )  # drawn apart: worlds without calls stay as they were
        self._on = self._rng.random() < SHARE
        self._dressed: dict[str, None] = {}
        self._let_go: dict[str, None] = {}
        self._releases: list[tuple[str, HubLife, Pending]] = []
        self._edits = 0
        if self._on:
            world.at(RELEASE_EVERY_MS, self._release_all)

    def dress(self, key: str, spec: dict[str, Any]) -> None:
        """Add a hold, conditions or alternatives to a job before it is handed in for the first time."""
        if not self._on or key in self._dressed:
            return
        self._dressed[key] = None
        rng, known = self._rng, list(self._checker.account.acknowledged)
        if rng.random() < 0.2:
            spec["hold"] = True
        if known and rng.random() < 0.3:
            chosen = rng.sample(known, min(len(known), rng.choice([1, 1, 2])))
            spec["after"] = [
                f"{rng.choice(['ok', 'ok', 'any', 'fail'])}:{self._name(job_id)}" for job_id in chosen
            ]
        called = list(self._checker.account.calls)
        if called and "after" not in spec and self._one.random() < 0.4:
            spec["after"] = [f"ok:{self._name(self._one.choice(called))}"]
        if rng.random() < 0.15:
            spec["variants"] = [
                {"name": "first", "cpu_milli": rng.choice([1000, 2000]), "env": {"BY": "0"}},
                {"cpu_milli": 500, "command": ["work", "slowly"], "env": {"BY": "1"}},
            ]

    def _name(self, job_id: str) -> str:
        """A job, or of one with calls often a single call of it."""
        calls = self._checker.account.calls.get(job_id, 0)
        if not calls or self._one.random() < 0.3:
            return job_id
        # Of the last ones: those have often not run yet.
        return f"{job_id}/{max(0, calls - 1 - self._one.randrange(8))}"

    def excused(self, spec: dict[str, Any], fault: BaseException) -> bool:
        """Whether a submit was refused because what it waits for is gone with the past of a restored hub."""
        account, needs = self._checker.account, [read_need(text) for text in spec.get("after", ())]
        if not isinstance(fault, InvalidSpec) or all(
            need.job_id in account.acknowledged and need.task < account.calls.get(need.job_id, 1)
            for need in needs
        ):
            return False
        self._world.counts["waits for a forgotten job"] += 1
        return True

    def acknowledged(self, job_id: str, spec: dict[str, Any]) -> None:
        """A job was handed in: draw what is done to it later."""
        if not self._on:
            return
        if spec.get("hold") and job_id not in self._let_go:
            self._checker.account.held[job_id] = None
        rng = self._rng
        for share, act in (
            (0.3, self._hold),
            (0.3, self._release),
            (0.5, self._edit),
            (0.3, self._edit),
            (0.35, self._requeue),
        ):
            if rng.random() < share:
                self._world.at(rng.randint(0, rng.choice([500, 5000, 60_000])), act, job_id)

    # --- what people do -----------------------------------------------------------------------------------------------

    def _ask(self, what: str, ask: Callable[[Pending], None], heard: Callable[[], None]) -> None:
        """Ask once; a refusal is an answer too, and no answer at all is nothing to go by."""

        def answered(got: Any, fault: BaseException | None) -> None:
            if fault is None:
                heard()
            elif isinstance(fault, (Conflict, InvalidSpec, NotFound)):
                self._world.counts[f"{what} refused"] += 1
            else:
                self._world.fail(f"{what} was answered with {fault!r}")

        self._world.counts[what] += 1
        ask(Pending(answered))

    def _hold(self, job_id: str) -> None:
        account, let_go = self._checker.account, self._let_go
        if self._hub.up and self._world.faulty:
            let_go.pop(job_id, None)

            def heard() -> None:
                if job_id not in let_go and account is self._checker.account:
                    account.held[job_id] = None

            self._ask("hold", lambda done: self._hub.now.hold(job_id, True, done), heard)

    def _release(self, job_id: str) -> None:
        if self._hub.up:
            # From here on it may start, whether or not anybody hears the answer.
            self._let_go[job_id] = None
            self._checker.account.held.pop(job_id, None)
            self._ask("release", lambda done: self._ask_release(job_id, done), lambda: None)

    def _ask_release(self, job_id: str, done: Pending) -> None:
        self._releases.append((job_id, self._hub.now, done))
        self._hub.now.hold(job_id, False, done)

    def rewind(self) -> None:
        """The hub was restored from a backup: it may do yet what it was asked and had not done, if it lives on."""
        waiting = [asked for asked in self._releases if not asked[2].done()]
        self._releases = [asked for asked in waiting if asked[1].up and not asked[1].astray]
        for job_id, _, _ in self._releases:
            self._checker.account.held.pop(job_id, None)

    def _release_all(self) -> None:
        """Once the faults have stopped nobody holds anything back any more."""
        if not self._world.faulty and self._hub.up:
            for job in list(self._hub.state.jobs.values()):
                if job.held and not job.state.final:
                    self._release(job.id)
        self._world.at(RELEASE_EVERY_MS, self._release_all)

    def _edit(self, job_id: str) -> None:
        if not self._hub.up:
            return
        self._edits += 1
        number, changes = self._edits, self._draw_changes(job_id)
        if marked := self._rng.random() < 0.7:
            changes["env"] = {MARK: str(number)}
        account = self._checker.account

        def heard() -> None:
            if marked and account is self._checker.account:
                account.edited[job_id] = max(number, account.edited.get(job_id, 0))

        self._ask("edit", lambda done: self._hub.now.edit(job_id, changes, done), heard)

    def _draw_changes(self, job_id: str) -> dict[str, Any]:
        rng = self._rng
        changes: dict[str, Any] = {"priority": rng.randint(-2, 2)}
        if rng.random() < 0.3:
            changes["queue"] = rng.choice(["default", "night"])
        if rng.random() < 0.5:
            changes["cpu_milli"] = rng.choice([500, 1000, 4000])
        elif rng.random() < 0.3:
            # Nobody has as many: from here on it waits in vain, whatever line it stood in before.
            changes["cpu_milli"], changes["scheduling_timeout_s"] = 64_000, 60
        if rng.random() < 0.3:
            changes["gpu_count"] = rng.choice([0, 1])
            # A world may have no card: then it ends as unschedulable.
            changes["scheduling_timeout_s"] = 300
        if rng.random() < 0.2:
            others = [other for other in self._checker.account.acknowledged if other != job_id]
            changes["after"] = [f"any:{rng.choice(others)}"] if others and rng.random() < 0.6 else []
        return changes

    def _requeue(self, job_id: str) -> None:
        if self._hub.up and self._world.faulty:
            index = 0 if self._rng.random() < 0.3 else None
            self._ask("requeue", lambda done: self._hub.now.requeue(job_id, index, done), lambda: None)
