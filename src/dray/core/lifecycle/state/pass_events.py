"""What a turn remembers for the next one, as signals: passes and the feeding of lanes decide it, `apply` writes it.
And what workers say of what they have warm, which the next look ahead goes by.

None of it is durable: a hub that comes back looks at everything anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dray.core.lifecycle.state.experience import Needs
from dray.core.lifecycle.state.lines import BucketKey, CrowdKey
from dray.core.lifecycle.state.state import Reservation, TaskKey, Watching


class TurnBegan(NamedTuple):
    """Time has come to a new turn, whether or not anything has happened."""


class Braked(NamedTuple):
    """So many workers fell silent at once that no loss is decided."""


class RoomReleased(NamedTuple):
    """Kept room is there for others: of reservations, by slot and whether the job is still due, and of moves."""

    slots: tuple[tuple[str, bool], ...]
    moves: tuple[TaskKey, ...]


class LineWatch(NamedTuple):
    """Look at a blocked job at `at_ms`, whose patience is `after_ms`."""

    job_id: str
    after_ms: int
    at_ms: int


class PassBegan(NamedTuple):
    """A pass has looked at every worker that gained room: whom that woke, and what is reserved now.

    `answered`: jobs that are no longer due for a reservation; `left`: rows that are no longer kept for anybody;
    `whole`: every line that was stirred has had its turn.
    """

    woken: tuple[int, ...] = ()
    kept: tuple[tuple[str, Reservation], ...] = ()
    answered: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    watches: tuple[LineWatch, ...] = ()
    left: tuple[int, ...] = ()
    whole: bool = False


class HeadsStale(NamedTuple):
    """So many entries at the head of each line mean nothing any more."""

    lines: tuple[tuple[BucketKey, int], ...]


class PassSettled(NamedTuple):
    """Who is left out of passes until something changes: shapes without room (`parked`), lines behind gates, shapes
    that were looked at (`seen`). `due` and `watches`: who is to be protected now or later; `looks`: who is looked at
    again, and when.
    """

    parked: tuple[int, ...]
    gated: tuple[tuple[BucketKey | CrowdKey, str], ...]
    due: tuple[str, ...]
    watches: tuple[LineWatch, ...]
    looks: tuple[tuple[str, int], ...]
    stale: tuple[tuple[BucketKey, int], ...]
    seen: tuple[int, ...]


class PollsAnswered(NamedTuple):
    """Whoever asked for work has got some (`served`: how much), or hears that there is none."""

    served: Mapping[str, int]


class LanesSeen(NamedTuple):
    """Lanes that had room for more were looked at."""

    uids: tuple[str, ...]


class LanesHungry(NamedTuple):
    """Lanes are to be looked at: somebody waits for their place."""

    uids: tuple[str, ...]


class LanesKept(NamedTuple):
    """Lanes without calls stay for a moment, each until when."""

    until_ms: tuple[tuple[str, int], ...]


class LeadsSeen(NamedTuple):
    """Attempts that may have got more behind them were looked at."""

    uids: tuple[str, ...]


class Foreseen(NamedTuple):
    """Who is likely to start where soon and lacks something there: (worker, job, needs). `dropped`: who need not get
    ready after all; `looked`: lines that were looked at, and whether they are worth another look, from `again_ms` on.
    """

    wanted: tuple[tuple[str, str, Needs], ...]
    dropped: tuple[tuple[str, Needs], ...]
    looked: tuple[tuple[BucketKey, bool], ...]
    again_ms: int


class WarmSeen(NamedTuple):
    """What a worker says that it has of snapshots and environments."""

    worker: str
    tokens: tuple[str, ...]


class PlacementWeighed(NamedTuple):
    """Which rule on strategies applies, since when it does, and when to look again."""

    rule: int
    since_ms: int
    look_ms: int


class EmptyingLooked(NamedTuple):
    """Places were looked for for what runs on a worker that is emptied; again at that moment, unless it is empty."""

    worker: str
    again_ms: int


class RebalanceLooked(NamedTuple):
    """The rebalancer has looked: what it remembers until the next time."""

    outlook: Watching


class BatchOpened(NamedTuple):
    """Tasks of these shapes are placed together, by a solver that has until then to say where."""

    shapes: tuple[int, ...]
    until_ms: int


class HintsGiven(NamedTuple):
    """Where the tasks of a batch are best placed: (job, index, worker). `number` 0: a pass has found that by itself."""

    number: int
    hints: tuple[tuple[str, int, str], ...]


class BatchClosed(NamedTuple):
    """The time of a batch, or of its hints, is up."""

    number: int


class SolverTold(NamedTuple):
    """There is a solver to be asked, or there is none for now."""

    ready: bool


PassSignal = (
    TurnBegan
    | Braked
    | RoomReleased
    | PassBegan
    | HeadsStale
    | PassSettled
    | PollsAnswered
    | LanesSeen
    | LanesHungry
    | LanesKept
    | LeadsSeen
    | Foreseen
    | WarmSeen
    | PlacementWeighed
    | EmptyingLooked
    | RebalanceLooked
    | BatchOpened
    | HintsGiven
    | BatchClosed
    | SolverTold
)
