"""What can happen to services and their replicas and to work that is moved, what is found of providers, of how fast
work runs and of workers that launchers start: facts, stored by the rules of those in `events`, and what a turn
remembers of launchers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.experience import SpeedSample


class ServiceScaled(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """A service is to have so many replicas from now on."""

    job_id: str
    replicas: int
    user: str = ""


class ReplicaRested(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """A replica that had ended has paused for long enough."""

    job_id: str
    index: int


class HealthChanged(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """What is said of a replica that runs differs from what was said before. `live` is false where it is to be started
    again, however long one might wait.
    """

    worker: str
    job_id: str
    index: int
    uid: str
    healthy: bool
    live: bool = True
    note: str = ""


class UseChanged(msgspec.Struct, frozen=True, array_like=True, tag=44):
    """All services that jobs of a user use are ready now, or one of them is no longer: `note` says which, and why."""

    user: str
    uses: tuple[str, ...]
    served: bool
    note: str = ""


class ServiceUpdated(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """A service is to run by another spec: a new revision, or an earlier one by its number. `kind` says how it came:
    update, restart (the same spec anew) or rollback. `replicas` below 0: as many as before.
    """

    job_id: str
    spec: bytes
    user: str = ""
    kind: str = "update"
    revision: int = 0
    replicas: int = -1


class UpdateAbandoned(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """An update goes no further: the service goes back to the revision that was whole."""

    job_id: str
    why: str = ""
    user: str = ""


class AdviceGiven(msgspec.Struct, frozen=True, array_like=True, tag=81):
    """Somebody was told what further workers would have brought, as the record of it says."""

    key: str
    kind: str
    like: str
    count: int
    here: int
    before_ms: int
    foretold_ms: int


class RolloutStepped(msgspec.Struct, frozen=True, array_like=True, tag=45):
    """Replicas of a service are to be replaced, and the next step can be taken: which one, its records say."""

    job_id: str


class ProviderJudged(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """It goes better or worse on the workers of a provider: `ok`, `degraded` or `bad`."""

    name: str
    health: str
    why: str = ""


class PlacementChosen(msgspec.Struct, frozen=True, array_like=True, tag=51):
    """Where the policy leaves it open: by this strategy tasks are placed from here on, by which rule and why."""

    strategy: str
    rule: int = 0
    why: str = ""


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Where an attempt that is moved starts again: the worker, its cards and the alternative by which it runs."""

    uid: str
    worker: str
    devices: tuple[int, ...] = ()
    variant: int = 0


class MovesDecided(msgspec.Struct, frozen=True, array_like=True, tag=66):
    """These attempts are to start again elsewhere, all of them or none, for this cause and not for other work.

    `gain` and `cost` are what is foretold of it, in one `unit`; `user` ordered it, nobody where the policy did.
    """

    moves: tuple[Move, ...]
    cause: str
    user: str = ""
    gain: int = 0
    cost: int = 0
    unit: str = ""
    why: str = ""


class MoveStepped(msgspec.Struct, frozen=True, array_like=True, tag=67):
    """A move came to its next stage: that of one task (`uid`: the attempt that it was told to leave), or all of it."""

    receipt: str
    stage: str
    uid: str = ""
    why: str = ""
    user: str = ""


class SpeedsSeen(msgspec.Struct, frozen=True, array_like=True, tag=39):
    """How fast attempts went for a while, by what they said of their progress or by tasks that do as much each."""

    samples: tuple[SpeedSample, ...]


ServiceFact = (
    ServiceScaled
    | ReplicaRested
    | HealthChanged
    | UseChanged
    | ServiceUpdated
    | UpdateAbandoned
    | AdviceGiven
    | RolloutStepped
    | ProviderJudged
    | PlacementChosen
    | MovesDecided
    | MoveStepped
    | SpeedsSeen
)


class LaunchAsked(msgspec.Struct, frozen=True, array_like=True, tag=90):
    """One more worker is wanted of a launcher: for whose job, or by whom, and why."""

    id: str
    launcher: str
    why: str
    job_id: str = ""
    user: str = ""


class LaunchMoved(msgspec.Struct, frozen=True, array_like=True, tag=91):
    """A launch has come further: `to` is what it is now. `handle`: what the site calls it, where that was told."""

    id: str
    to: str
    why: str = ""
    handle: str = ""
    user: str = ""
    failed: bool = False


class LaunchSaid(msgspec.Struct, frozen=True, array_like=True, tag=92):
    """The site says something new about a launch, such as that it waits for its turn."""

    id: str
    said: str
    handle: str = ""


class WorkerEnding(msgspec.Struct, frozen=True, array_like=True, tag=94):
    """A worker ends at a known time (wall time), by somebody's word; 0: not that anybody knew."""

    worker: str
    at_ms: int
    user: str = ""
    why: str = ""


class LaunchForgotten(msgspec.Struct, frozen=True, array_like=True, tag=93):
    """A launch that is over, and of no day that counts, leaves the ledger."""

    id: str


class LaunchersDue(NamedTuple):
    """It is time to look whether workers are to be started or ended."""


class LaunchersSeen(NamedTuple):
    """Launchers were looked at: since when which of their workers have idled."""

    idle: tuple[tuple[str, int], ...] = ()


LaunchFact = LaunchAsked | LaunchMoved | LaunchSaid | LaunchForgotten | WorkerEnding
LaunchSignal = LaunchersDue | LaunchersSeen
