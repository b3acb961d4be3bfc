"""Who is told to get ready for what, when that ends, and how it is judged."""

from __future__ import annotations

from typing import Any

from tests.core.harness import AGENT, Cluster

from dray.core.lifecycle.state.effects import Effect, GetReady
from dray.core.lifecycle.state.events import SessionClosed
from dray.core.lifecycle.state.experience import Needs
from dray.core.lifecycle.state.pass_events import WarmSeen

TREES = [f"snap-{digit * 64}" for digit in "123456"]
SHAS = [digit * 64 for digit in "abcdef"]
READY = (*AGENT, "prewarm")
FIRST, SECOND = (Needs(TREES[place], SHAS[place], "") for place in (0, 1))


def needing(place: int, **more: Any) -> dict[str, Any]:
    return {"snapshot_id": TREES[place], "snapshot_sha": SHAS[place], **more}


def told(effects: list[Effect]) -> list[tuple[str, str, str, bool]]:
    return [
        (one.worker, one.job_id, one.needs.snapshot_id, one.over)
        for one in effects
        if isinstance(one, GetReady)
    ]


def fill(cluster: Cluster, workers: dict[str, float], features: tuple[str, ...] = READY) -> dict[str, str]:
    """Workers with one slot each, on which something runs that is expected to take so many seconds."""
    uids = {}
    for worker, seconds in workers.items():
        cluster.join(worker, credit=100, batch=1, features=features)
        cluster.submit(f"on-{worker}", expected_runtime_s=seconds)
        uids[worker] = cluster.current(f"on-{worker}")
        cluster.run(uids[worker])
    return uids


def test_the_worker_that_is_free_first_is_told_and_judged(cluster: Cluster) -> None:
    uids = fill(cluster, {"late": 300, "soon": 60})
    effects = cluster.submit("next", **needing(0))
    assert told(effects) == [("soon", "next", TREES[0], False)]
    assert told(cluster.advance(20)) == [], "once is enough"
    cluster.end(uids["soon"])
    assert cluster.attempt(cluster.current("next")).worker == "soon"
    assert cluster.state.prewarm_ends == {"sent": 1, "used": 1}
    assert not cluster.state.prewarms


def test_nobody_is_told_what_nobody_needs_or_who_has_it_or_could_not_understand(cluster: Cluster) -> None:
    fill(cluster, {"w1": 60})
    assert told(cluster.submit("plain")) == []
    assert not cluster.state.eyed
    cluster.cancel("plain")
    cluster.turn(WarmSeen("w1", (f"snapshot {SHAS[0]}",)))
    assert told(cluster.submit("warm", **needing(0))) == []
    # What is gone there has to be brought again.
    cluster.turn(WarmSeen("w1", ()))
    assert told(cluster.advance(2)) == [("w1", "warm", TREES[0], False)]
    old = Cluster()
    fill(old, {"w1": 60}, AGENT)
    assert told(old.submit("next", **needing(0))) == []


def test_what_nobody_waits_for_any_more_is_taken_back(cluster: Cluster) -> None:
    fill(cluster, {"w1": 60})
    assert told(cluster.submit("next", **needing(0)))
    cluster.cancel("next")
    assert told(cluster.advance(2)) == [("w1", "next", TREES[0], True)]
    assert cluster.state.prewarm_ends == {"sent": 1, "wasted": 1}
    assert not cluster.state.eyed
    assert not [kind for _, kind, _ in cluster.state.timers if kind == "foresee"][1:], (
        "it does not look for ever"
    )


def test_further_jobs_of_a_line_get_what_is_free_after_that(cluster: Cluster) -> None:
    fill(cluster, {"w1": 60, "w2": 90, "w3": 400})
    cluster.submit("first", **needing(0))
    cluster.submit("second", **needing(1))
    assert told(cluster.advance(2)) == [("w2", "second", TREES[1], False)]
    assert {worker: [*needs] for worker, needs in cluster.state.prewarms.items()} == {
        "w1": [FIRST],
        "w2": [SECOND],
    }


def test_a_guess_that_proves_wrong_stands_while_anybody_waits(cluster: Cluster) -> None:
    uids = fill(cluster, {"w1": 60, "w2": 120})
    assert told(cluster.submit("next", **needing(0))) == [("w1", "next", TREES[0], False)]
    # The first runs on and on; the other comes to its end, and takes what was to be the first one's.
    assert told(cluster.advance(90)) == []
    cluster.end(uids["w2"])
    assert cluster.attempt(cluster.current("next")).worker == "w2"
    assert told(cluster.advance(2)) == [("w1", "next", TREES[0], True)]
    assert cluster.state.prewarm_ends == {"sent": 1, "wasted": 1}


def test_a_reservation_and_a_gang_are_told_of_all_their_workers(cluster: Cluster) -> None:
    fill(cluster, {"w1": 60, "w2": 90})
    found = told(cluster.submit("gang", **needing(0, node_count=2)))
    assert sorted(found) == [("w1", "gang", TREES[0], False), ("w2", "gang", TREES[0], False)]


def test_a_worker_that_goes_is_no_mistake(cluster: Cluster) -> None:
    fill(cluster, {"w1": 60})
    cluster.submit("next", **needing(0))
    cluster.turn(SessionClosed("w1", cluster.state.presence["w1"].session))
    cluster.register("w1", incarnation="another")
    assert cluster.state.prewarm_ends == {"sent": 1, "lost": 1}


def test_hints_are_few(cluster: Cluster) -> None:
    fill(cluster, {"w1": 60})
    for place in range(6):
        cluster.submit(f"job{place}", user=f"user{place}", **needing(place))
    cluster.advance(10)
    assert len(cluster.state.prewarms["w1"]) == 1, "one slot, one to come"
