"""All views of one hub, made from its parts."""

from __future__ import annotations

from typing import NamedTuple

from dray.config import HubConfig
from dray.hub.answers.answers import Answers
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.views.board import Board
from dray.hub.views.cluster import ClusterView
from dray.hub.views.live import LiveView
from dray.hub.views.machines import MachinesView


class Views(NamedTuple):
    """What a hub shows of itself."""

    cluster: ClusterView
    machines: MachinesView
    live: LiveView


def make_views(engine: Engine, clock: HubClock, answers: Answers, config: HubConfig) -> Views:
    """Make all of them around one board; they hear of what is committed."""
    board = Board(engine)
    live = LiveView(engine, clock, board)
    answers.listeners.append(live.hear)
    machines = MachinesView(engine, clock, board, round(config.stale_s * 1000))
    return Views(ClusterView(engine, clock, board), machines, live)
