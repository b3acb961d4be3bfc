"""The page about states says all that the tables say."""

from __future__ import annotations

import pytest
from tools.generate_states import EVENTS, PHASES, STATES, states_page

from dray.core.lifecycle.holding.attempts import TRANSITIONS, TRIGGERS
from dray.core.model.records.records import JobState, Phase

PAGE = states_page()


def arrows() -> dict[tuple[str, str], list[str]]:
    """The arrows of the picture of attempts: from, to and the events on them."""
    found = {}
    for line in PAGE.split("```mermaid")[1].split("```")[0].splitlines():
        before, arrow, rest = line.strip().partition(" --> ")
        if arrow:
            after, _, events = rest.partition(": ")
            found[before, after] = events.split(", ")
    return found


def cells() -> dict[tuple[str, str], str]:
    """The table of moves: what an event leads to in a phase."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    start = next(place for place, line in enumerate(lines) if line.startswith("| event | in "))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    phases = [cell.removeprefix("in ").strip("`") for cell in rows[0][1:]]
    moves = [row for row in rows[2:] if row[0] in TRIGGERS]
    return {
        (phase, row[0]): cell.strip("`") for row in moves for phase, cell in zip(phases, row[1:], strict=True)
    }


@pytest.mark.parametrize(("before", "trigger"), list(TRANSITIONS))
def test_every_transition_is_in_the_picture_and_in_the_table(before: Phase, trigger: str) -> None:
    after = TRANSITIONS[before, trigger]
    assert trigger in arrows()[before, after]
    assert cells()[before, trigger] == after


def test_the_page_shows_nothing_that_is_not_in_the_table() -> None:
    drawn = {
        (before, trigger): after
        for (before, after), triggers in arrows().items()
        if "[*]" not in (before, after)
        for trigger in triggers
    }
    assert drawn == TRANSITIONS
    assert {key: cell for key, cell in cells().items() if cell} == TRANSITIONS


def test_every_name_has_its_meaning() -> None:
    assert set(PHASES) == set(Phase)
    assert set(EVENTS) == set(TRIGGERS)
    assert set(STATES) == set(JobState)
    for phase in Phase:
        assert ((phase, "[*]") in arrows()) is not phase.live
