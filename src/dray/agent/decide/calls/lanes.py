"""What the agent knows of a lane and of a runner: records, without the rules that change them (calls.py).

A lane is a place held for the calls of one job; a runner is the process that runs them. A lane that has calls has one
runner, or waits for one.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from dray.agent.decide.effects import Argument
from dray.agent.decide.words import Said
from dray.core.model.specs.spec import FOREVER_NS, TIERS, JobSpec

RUNNER_PREFIX = "runner-"


class Binding(NamedTuple):
    """What a runner is bound to at its first use, for good: code of one user never runs in what another has used."""

    venv: str
    memory_bytes: int
    user: str
    devices: tuple[int, ...]


class Stopping(NamedTuple):
    """An attempt was asked to end: why, and when KILL comes."""

    reason: str
    kill_ms: int

    def describe(self, now_ms: int) -> dict[str, Any]:
        """As its task is told."""
        return {"reason": self.reason, "grace_s": max(0, self.kill_ms - now_ms) / 1000}


class Lane(msgspec.Struct, kw_only=True):
    """One lane. `calls` are those that have not ended, by index: the number of the try and the argument.

    `queue` holds the ones that no runner has, `fed` those that its runner has, in the order in which it runs them,
    `landing` those that have run and whose values are on their way to the hub. `done` are ended calls that the hub
    has not acked. `later` are tries of calls of which an earlier one is still in the runner: a result is that of its
    own try, and after a restore of the hub the two need not even have the same argument. `since_ms` is the earliest
    moment at which the first of `fed` can have begun, `recall_ms` for how long it has to run before the runner is asked
    again for the others. `inherited`: an earlier agent had it, and the hub has not sent its calls again yet.
    """

    uid: str
    job: str
    spec: JobSpec | None = None
    devices: tuple[int, ...] = ()
    token: str = ""
    limit_ms: int | None = None
    calls: dict[int, tuple[int, Argument]] = {}
    queue: deque[int] = msgspec.field(default_factory=deque)
    fed: dict[int, None] = {}
    landing: dict[int, None] = {}
    done: dict[int, int] = {}
    later: dict[int, tuple[int, Argument]] = {}
    cancelled: dict[int, None] = {}
    runner: str = ""
    begun: bool = False
    yielded: bool = False
    inherited: bool = False
    since_ms: int = 0
    deaths: int = 0
    mean_us: int = 0
    nudged: bool = False
    recall_ms: int = 0
    stopping: Stopping | None = None
    result: dict[str, Any] | None = None
    sent_ms: int = 0
    said: Said = msgspec.field(default_factory=Said)

    @property
    def careful(self) -> bool:
        """Whether a second run of its calls would do harm."""
        return self.spec is not None and (self.spec.at_most_once or self.spec.overlap == "fenced")

    @property
    def binding(self) -> Binding:
        """What a runner for it must be bound to."""
        assert self.spec is not None  # asked only of lanes with calls, which come with their spec
        spec = self.spec
        return Binding(spec.env.get("VIRTUAL_ENV", ""), spec.memory_bytes, spec.user_id, self.devices)

    @property
    def grace_s(self) -> float:
        return float(TIERS[self.spec.job_tier].grace_s) if self.spec is not None else 0.0

    @property
    def live(self) -> bool:
        """Whether the hub must be told of it: something of it is unfinished, or untold."""
        return bool(self.calls or self.done or self.landing or self.inherited) or self.stopping is not None

    def set_limit(self, remaining_ns: int) -> None:
        self.limit_ms = None if remaining_ns >= FOREVER_NS else max(1, remaining_ns // 1_000_000)

    def first_fed(self) -> int | None:
        """The call that its runner is in, as far as can be told from here."""
        return next(iter(self.fed), None)

    def took(self, wall_us: int) -> None:
        """Learn how long its calls take: a mean that forgets."""
        self.mean_us = wall_us if not self.mean_us else (7 * self.mean_us + wall_us) // 8


class RunnerRecord(msgspec.Struct, kw_only=True):
    """One runner. `phase`: starting, idle, busy (it serves `lane`) or ending; `why` it was asked to end.

    `account`, `venv` and `memory_bytes` are settled at its start, the rest of its `binding` at its first use.
    """

    uid: str
    venv: str
    memory_bytes: int
    account: str = ""
    phase: str = "starting"
    binding: Binding | None = None
    lane: str = ""
    job: str = ""
    why: str = ""
    calls: int = 0
    worn: bool = False
    idle_ms: int = 0
    pid: int = 0

    def fits(self, wanted: Binding) -> bool:
        if self.binding is not None:
            return self.binding == wanted
        return (self.venv, self.memory_bytes) == (wanted.venv, wanted.memory_bytes)
