"""The rules of leading, by values: when a row may be taken, how long a lead is trusted, what of a turn in doubt."""

from __future__ import annotations

import pytest

from dray.hub.store.base import Led, Lost, Position
from dray.hub.store.leading import (
    Found,
    Seen,
    Settling,
    Timings,
    Trust,
    Vigil,
    WentBack,
    find_lost,
    further,
    last_given_out,
    least_epoch,
    settle,
)


def row(beat: int, holder: str = "a.1", epoch: int = 4) -> Seen:
    return Seen(epoch, beat, holder, "", 0)


def test_a_row_that_does_not_change_for_the_lease_may_be_taken():
    vigil = Vigil(3.0)
    assert vigil.note(row(1), 0.0, 0.1) is None
    assert vigil.note(row(2), 2.0, 2.1) is None
    assert vigil.note(row(2), 5.0, 5.1) is None
    led = vigil.note(row(2), 5.25, 5.3)
    assert led is not None
    assert (led.before, led.why, round(led.after_s, 3)) == ("a.1", "silent", 3.15)


def test_a_silence_begins_when_a_look_is_answered():
    """The leader renewed while the first look was under way, and trusts in that for most of a lease."""
    timings, trust = Timings(3.0), Trust(Timings(3.0).trust_s)
    vigil = Vigil(timings.lease_s)
    vigil.note(row(1), 0.0, 1.9)
    trust.renew(1.8)
    assert trust.holds(3.1)
    assert vigil.note(row(1), 3.1, 3.2) is None
    assert vigil.note(row(1), 5.0, 5.1) is not None
    assert not trust.holds(5.0)


def test_a_look_that_fails_starts_the_wait_anew():
    vigil = Vigil(3.0)
    vigil.note(row(1), 0.0, 0.0)
    vigil.miss()
    assert vigil.note(row(1), 3.5, 3.5) is None
    assert vigil.note(row(1), 6.5, 6.5) is not None


def test_what_nobody_leads_is_left_to_others_for_a_while():
    vigil = Vigil(3.0, "b.", 0.5)
    assert vigil.note(row(1, ""), 1.0, 1.0) is None
    assert vigil.note(row(1, ""), 1.5, 1.5) == Led("", "resigned", 0.5)
    assert vigil.note(row(1, "b.7"), 2.0, 2.0) == Led("b.7", "restarted", 0.0)
    assert Vigil(3.0).note(row(0, "", 0), 0.0, 0.0) == Led("", "first", 0.0)


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        (Found(4, 9, 3), [Settling.RENEW, Settling.LOOK]),
        (Found(None, 8, 3), [Settling.RENEW, Settling.LOOK, Settling.COMMIT]),
    ],
)
def test_a_turn_in_doubt_is_looked_for_after_a_renewal_and_committed_again_where_it_is_not(found, asked):
    steps, answer, seen = settle(4, Found(None, 8, 3)), Found(None, 0, 0), []
    try:
        step = next(steps)
        while True:
            seen.append(step)
            step = steps.send(found if step is Settling.LOOK else answer)
    except StopIteration:
        assert seen == asked


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Found(None, 7, 3), "log went back to turn 7, from 8"),
        (Found(4, 9, 2), "rows went back to turn 2, from 3"),
    ],
)
def test_a_store_that_went_back_is_not_written_to(found, words):
    steps = settle(4, Found(None, 8, 3))
    next(steps)
    steps.send(Found(None, 0, 0))
    with pytest.raises(WentBack, match=words):
        steps.send(found)


def test_what_a_store_has_lost_is_known_from_outside_it():
    known = Position(5, 20)
    lost = find_lost(Position(3, 18), known)
    assert lost == Lost(Position(3, 18), known)
    assert (last_given_out(Position(3, 18), lost), least_epoch(known)) == (20, 6)
    assert find_lost(Position(6, 30), known) is None
    assert (last_given_out(Position(6, 30), None), least_epoch(None)) == (30, 1)
    assert further(known, Position(4, 25)) is known
    assert further(None, Position(1, 1)) == Position(1, 1)
