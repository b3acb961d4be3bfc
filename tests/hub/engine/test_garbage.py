"""When a hub looks at all its memory: after enough has gathered, or at the latest after an hour."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dray.hub.engine import garbage
from dray.hub.engine.garbage import Collector, leave_out_what_is_there, take_over_collector


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_nothing_is_collected_while_little_has_gathered() -> None:
    take_over_collector()
    gc.collect()
    assert not Collector().tend()


def test_what_refers_to_itself_goes_once_enough_has_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "YOUNG", 100)
    monkeypatch.setattr(garbage, "MOST_ROUNDS", 3)
    take_over_collector()
    gc.collect()
    mine = Collector()
    kept: list[list[int]] = []
    while gc.get_count()[2] < 3:
        kept.append([len(kept)])
    assert mine.tend()
    assert gc.get_count()[2] == 0
    assert not mine.tend()


def test_it_is_done_at_the_latest_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    take_over_collector()
    gc.collect()
    mine = Collector()
    monkeypatch.setattr(garbage, "AT_LATEST_S", 0.0)
    assert mine.tend()


def test_the_interpreter_makes_no_full_collection_by_itself() -> None:
    take_over_collector()
    assert gc.get_threshold()[2] >= 1_000_000


def test_what_others_left_out_is_looked_at_only_where_an_earlier_state_is_let_go() -> None:
    class Ring:
        def __init__(self) -> None:
            self.round = self

    seen = weakref.ref(Ring())
    gc.freeze()
    try:
        leave_out_what_is_there(again=False)
        assert seen() is not None
        leave_out_what_is_there(again=True)
        assert seen() is None
    finally:
        gc.unfreeze()
