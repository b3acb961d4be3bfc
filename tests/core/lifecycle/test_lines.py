"""Lines and the gates that they wait behind."""

from __future__ import annotations

from dray.core.lifecycle.state.lines import RANGE, Backlog, BucketKey, CrowdKey, Entry
from dray.core.lifecycle.state.state import State


def test_a_line_met_by_two_gates_waits_behind_the_last_one_alone() -> None:
    backlog = Backlog(State())
    key = BucketKey(0, 0, 0)
    backlog.add(key, Entry(0, 0, 1, RANGE, "job"), CrowdKey("default", (), 0))
    backlog.shut(key, "pace a")
    backlog.shut(key, "quota b")
    backlog.open("pace a")
    assert backlog.gated == {key: "quota b"}
    backlog.open("quota b")
    assert not backlog.gated
    assert not backlog.behind
