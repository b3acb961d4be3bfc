"""All studies of one hub, made from its parts."""

from __future__ import annotations

from typing import NamedTuple

from dray.hub.answers.answers import Answers
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.store.base import Store
from dray.hub.studies.replays import Replays
from dray.hub.studies.studies import Studies
from dray.hub.studies.whatif import WhatIf


class StudyDesk(NamedTuple):
    """What may be studied, and the line of what is."""

    all: Studies
    whatif: WhatIf
    replays: Replays


def make_studies(engine: Engine, clock: HubClock, answers: Answers, store: Store) -> StudyDesk:
    """Make all of them."""
    return StudyDesk(Studies(engine, clock), WhatIf(engine, answers), Replays(engine, clock, store))
