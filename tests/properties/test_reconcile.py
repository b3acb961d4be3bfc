"""Reconciling is idempotent, free of order, and never stops what it does not know."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from dray.core.lifecycle.happenings.reconcile import (
    ADOPT,
    KEEP,
    LOSE,
    QUARANTINE,
    RESEND,
    STOP,
    Decision,
    Reported,
    reconcile,
)
from dray.core.model.records.records import LIVE_PHASES, Phase

UIDS = st.sampled_from([f"1-{number}" for number in range(8)])
STRANGE = st.sampled_from(["alien", "alien/3", "other"])
FLAGS = st.booleans()
KNOWN = st.builds(Reported, UIDS, st.just(True), st.sampled_from(Phase), FLAGS, FLAGS)
UNKNOWN = st.builds(Reported, STRANGE, st.just(False), st.none(), FLAGS, FLAGS)
REPORTS = st.lists(KNOWN | UNKNOWN, unique_by=lambda report: report.key, max_size=8)
HELD = st.dictionaries(UIDS, st.sampled_from(LIVE_PHASES), max_size=8)
FINISHED = st.lists(UIDS, unique=True, max_size=3)


def held_with(held: dict[str, Phase], reports: list[Reported]) -> dict[str, Phase]:
    """What is held agrees with what the reports were resolved to."""
    named = {report.key: report.phase for report in reports if report.known}
    kept = {uid: phase for uid, phase in held.items() if uid not in named}
    return kept | {uid: phase for uid, phase in named.items() if phase is not None and phase.live}


@given(HELD, REPORTS, FINISHED, FLAGS, st.randoms(use_true_random=False))
def test_the_order_of_a_report_does_not_matter(
    held: dict[str, Phase], reports: list[Reported], finished: list[str], same: bool, shuffler: object
) -> None:
    held = held_with(held, reports)
    decided = reconcile(held, reports, finished, same)
    turned = dict(reversed(held.items()))
    others = list(reports)
    shuffler.shuffle(others)  # type: ignore[attr-defined]  # a random.Random
    assert reconcile(turned, others, finished[::-1], same) == decided
    assert len({decision.key for decision in decided}) == len(decided), "one decision for each"


@given(HELD, REPORTS, FINISHED, FLAGS)
def test_what_is_unknown_is_listed_and_what_is_held_is_never_forgotten(
    held: dict[str, Phase], reports: list[Reported], finished: list[str], same: bool
) -> None:
    held = held_with(held, reports)
    actions = {decision.key: decision.action for decision in reconcile(held, reports, finished, same)}
    for report in reports:
        if not report.known:
            assert actions[report.key] == QUARANTINE
        elif report.phase is not None and report.phase.live:
            assert actions[report.key] == (STOP if report.cancelled else KEEP)
        else:
            assert actions[report.key] == (
                ADOPT if report.phase is Phase.LOST and report.adoptable else STOP
            ), "only what was lost comes back"
    named = {report.key for report in reports}
    for uid, phase in held.items():
        if uid in named or uid in finished:
            continue
        assert actions[uid] == (RESEND if phase is Phase.ASSIGNED and same else LOSE)

    assert set(actions) == named | (set(held) - set(finished))


@given(HELD, REPORTS, FINISHED, FLAGS, st.lists(UIDS, unique=True))
def test_a_lane_that_is_not_reported_is_sent_again_unless_it_is_to_stop(
    held: dict[str, Phase], reports: list[Reported], finished: list[str], same: bool, lanes: list[str]
) -> None:
    held = held_with(held, reports)
    decided = {item.key: item.action for item in reconcile(held, reports, finished, same, lanes)}
    plain = {item.key: item.action for item in reconcile(held, reports, finished, same)}
    for key, action in decided.items():
        sent_again = action == RESEND and plain[key] == LOSE
        assert action == plain[key] or sent_again
        if sent_again:
            assert key in lanes
            assert held[key] is not Phase.STOPPING
            assert same


@given(HELD, REPORTS, FINISHED, FLAGS)
def test_a_second_look_decides_nothing_new(
    held: dict[str, Phase], reports: list[Reported], finished: list[str], same: bool
) -> None:
    held = {uid: phase for uid, phase in held_with(held, reports).items() if uid not in finished}
    decided = reconcile(held, reports, (), same)
    actions = {decision.key: decision.action for decision in decided}
    after = {uid: phase for uid, phase in held.items() if actions.get(uid) != LOSE}
    after |= {uid: Phase.RUNNING for uid, action in actions.items() if action == ADOPT}
    again = [
        report._replace(phase=Phase.RUNNING) if actions[report.key] == ADOPT else report for report in reports
    ]
    again = [report._replace(cancelled=False) if actions[report.key] == ADOPT else report for report in again]
    expected = [
        Decision(KEEP if decision.action == ADOPT else decision.action, decision.key)
        for decision in decided
        if decision.action != LOSE
    ]
    assert reconcile(after, again, (), same) == expected
