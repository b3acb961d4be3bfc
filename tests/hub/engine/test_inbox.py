"""Two lines before the engine: what presses goes first, and holds up nobody for long."""

from __future__ import annotations

from dray.hub.engine.inbox import Inbox
from dray.hub.engine.turns import Decision, Request


def request(name: str, weight: int = 1) -> Request:
    return Request(lambda state, clock: Decision(), None, weight, name)


def fill(inbox: Inbox, names: str, presses: bool = False) -> None:
    for name in names:
        inbox.add(request(name), presses)


def taken(inbox: Inbox, work: int = 0) -> str:
    return "".join(request.who for request in inbox.take(work))


def test_what_presses_overtakes_bulk_work_and_keeps_its_own_order() -> None:
    inbox = Inbox(4)
    fill(inbox, "abcde")
    fill(inbox, "XY", presses=True)
    assert (len(inbox), "".join(one.who for one in inbox)) == (7, "XYabcde")
    assert [taken(inbox), taken(inbox), len(inbox)] == ["XYab", "cde", 0]


def test_a_flood_of_questions_leaves_half_of_each_turn_to_others() -> None:
    inbox = Inbox(4)
    fill(inbox, "UVWXYZ", presses=True)
    fill(inbox, "abcdef")
    assert [taken(inbox), taken(inbox), taken(inbox), taken(inbox)] == ["UVab", "WXcd", "YZef", ""]


def test_a_turn_is_bounded_by_work_and_takes_something_at_least() -> None:
    inbox = Inbox(4)
    for name, weight in (("a", 9), ("b", 3), ("c", 3), ("d", 1)):
        inbox.add(request(name, weight))
    assert [taken(inbox), taken(inbox), taken(inbox)] == ["a", "bc", "d"]


def test_one_by_one_where_that_is_asked_for() -> None:
    inbox = Inbox(4)
    fill(inbox, "ab")
    fill(inbox, "X", presses=True)
    assert [taken(inbox, 1), taken(inbox, 1), taken(inbox, 1)] == ["X", "a", "b"]


def test_behind_is_more_than_a_turn_takes() -> None:
    inbox = Inbox(2)
    fill(inbox, "ab")
    assert not inbox.is_behind
    fill(inbox, "c")
    assert inbox.is_behind
    inbox.clear()
    assert len(inbox) == 0


def test_it_does_not_hurry_while_all_that_waits_is_patient() -> None:
    inbox = Inbox(2)
    inbox.add(request("a")._replace(patient=True))
    assert not inbox.hurries
    fill(inbox, "X", presses=True)
    assert inbox.hurries
    assert taken(inbox, 1) == "X"
    assert not inbox.hurries
    for name in "bc":
        inbox.add(request(name)._replace(patient=True))
    assert inbox.hurries, "a turn does not take all of it any more"
    inbox.clear()
    inbox.add(request("d"))
    assert inbox.hurries
