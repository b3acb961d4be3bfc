"""All views of one hub, made from its parts."""

from __future__ import annotations

from typing import NamedTuple

from dray.config import HubConfig
from dray.hub.answers.answers import Answers
from dray.hub.aside.comparison import Comparison
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.store.writer import StoreWriter
from dray.hub.views.advice import AdviceView
from dray.hub.views.board import Board
from dray.hub.views.cluster import ClusterView
from dray.hub.views.counts import CountsView
from dray.hub.views.live import LiveView
from dray.hub.views.machines import MachinesView
from dray.hub.views.past.demand import DemandView
from dray.hub.views.past.events import EventsView
from dray.hub.views.past.failures import FailuresView
from dray.hub.views.past.history import History
from dray.hub.views.past.loads import Loads
from dray.hub.views.past.timeline import TimelineView
from dray.hub.views.previews import Previews
from dray.hub.views.users import UsersView


class Views(NamedTuple):
    """What a hub shows of itself."""

    cluster: ClusterView
    machines: MachinesView
    live: LiveView
    history: History
    failures: FailuresView
    counts: CountsView
    timeline: TimelineView
    users: UsersView
    previews: Previews
    events: EventsView
    loads: Loads
    demand: DemandView
    advice: AdviceView
    comparison: Comparison
    clock: HubClock

    def clock_ms(self) -> int:
        """Wall time."""
        return self.clock.read().at_ms


def make_views(
    writer: StoreWriter, engine: Engine, clock: HubClock, answers: Answers, config: HubConfig
) -> Views:
    """Make all of them around one board; they hear of what is committed."""
    store = writer.store
    board = Board(engine)
    live = LiveView(engine, clock, board)
    loads = Loads(engine, answers.rows)
    history = History(engine, clock, store, writer, board, loads)
    users = UsersView(engine, clock)
    answers.listeners += [live.hear, history.hear, users.hear]
    machines = MachinesView(engine, clock, board, round(config.stale_s * 1000))
    counts = CountsView(engine, clock, store, answers.forecasts)
    failures = FailuresView(engine, store)
    timeline = TimelineView(engine, clock, store, answers.rows, board, answers.forecasts)
    return Views(
        ClusterView(engine, clock, board),
        machines,
        live,
        history,
        failures,
        counts,
        timeline,
        users,
        Previews(engine, answers),
        EventsView(engine, store),
        loads,
        DemandView(engine, clock, store),
        AdviceView(engine, store, answers),
        Comparison(engine, clock),
        clock,
    )
