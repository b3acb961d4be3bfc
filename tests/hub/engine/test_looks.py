"""Looks at many workers share turns: each by itself would cost a hub with many that idle more than their heartbeats."""

from __future__ import annotations

from tests.core.harness import Cluster

from dray.core.lifecycle.timers import SILENCE_WAITS_MS, next_due_ms, next_look_ms

WORKERS, JOINED_MS = 200, 1000


def test_looks_at_many_workers_share_a_turn_and_all_are_made() -> None:
    cluster = Cluster()
    assert next_look_ms(cluster.state) is None
    for number in range(WORKERS):
        cluster.now_ms += JOINED_MS // WORKERS
        cluster.join(f"w{number}")
    turns, until_ms = 0, cluster.now_ms + cluster.state.rules.suspect_ms
    while (look_ms := next_look_ms(cluster.state)) is not None and look_ms < until_ms:
        cluster.now_ms = look_ms
        cluster.turn()
        turns += 1
    assert turns <= JOINED_MS / SILENCE_WAITS_MS + 1
    quiet = [worker for worker, presence in cluster.state.presence.items() if not presence.suspect]
    assert len(quiet) <= WORKERS * SILENCE_WAITS_MS / JOINED_MS + 1


def test_what_comes_first_and_is_no_such_look_waits_for_nobody() -> None:
    cluster = Cluster()
    cluster.join("w1", credit=1)
    cluster.submit("a")
    assert cluster.state.timers[0][1] != "silence"
    assert next_look_ms(cluster.state) == next_due_ms(cluster.state)
