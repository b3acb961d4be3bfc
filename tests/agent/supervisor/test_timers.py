"""Timers fire in order and cancelled ones do not pile up."""

from __future__ import annotations

import functools

from dray.agent.supervisor.processes.timers import REBUILD_AT, Timers


def test_due_in_order_and_once():
    timers = Timers()
    fired: list[float] = []
    for when in (3.0, 1.0, 2.0, 2.0):
        timers.at(when, functools.partial(fired.append, when))
    assert timers.wait_s(0.5) == 0.5
    for call in timers.due(2.5):
        call()
    assert fired == [1.0, 2.0, 2.0]
    assert timers.due(2.5) == []
    assert timers.wait_s(5.0) == 0.0
    assert len(timers) == 1


def test_cancelled_timers_are_dropped_long_before_they_are_due():
    timers = Timers()
    kept = timers.at(1e9, lambda: None)
    for _ in range(20 * REBUILD_AT):
        timer = timers.at(86400.0, lambda: None)
        timers.cancel(timer)
        timers.cancel(timer)
    assert len(timers) == 1
    assert len(timers._heap) <= 2 * REBUILD_AT
    timers.cancel(kept)
    assert timers.wait_s(0.0) is None
