"""Arrays: caps, open ends, and their place in the line."""

from __future__ import annotations

from tests.core.harness import Cluster, assigned

from dray.core.lifecycle.state.timings import Rules
from dray.core.model.records.records import JobState


def test_an_array_is_one_record_until_its_tasks_are_placed(cluster: Cluster) -> None:
    cluster.submit(array={"first": 10, "last": 1_000_009, "step": 1})
    assert (cluster.job().total, len(cluster.state.tasks)) == (1_000_000, 0)
    cluster.join("w1", credit=2)
    assert sorted(index for _, index in cluster.state.tasks) == [0, 1]


def test_its_own_cap_bounds_what_runs_at_once(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, batch=9)
    assert len(assigned(cluster.submit(array={"last": 9, "limit": 2}))) == 2
    assert "its own cap is 2" in cluster.summary()
    assert assigned(cluster.poll("w1", 9)) == []
    assert len(assigned(cluster.end(cluster.current("job", 0)))) == 1
    assert cluster.job().live == 2


def test_a_capped_array_does_not_hold_back_others_of_its_shape(cluster: Cluster) -> None:
    cluster.join("w1", credit=9, batch=9)
    cluster.submit("capped", array={"last": 9, "limit": 1})
    assert len(assigned(cluster.submit("other"))) == 1
    assert len(assigned(cluster.submit("another", user="bob"))) == 1


def test_the_next_member_starts_when_one_was_lost(cluster: Cluster) -> None:
    cluster.join("w1", credit=1, beats=False, labels={"n": "1"})
    cluster.submit(array={"last": 3, "limit": 1})
    cluster.run(cluster.current())
    cluster.join("w2", credit=4)
    assert cluster.held("w2") == []
    cluster.advance(121)
    assert len(cluster.held("w2")) == 1
    assert cluster.current("job", 0), "the lost one keeps its place before the others"


def test_the_cap_counts_what_is_still_stopping(cluster: Cluster) -> None:
    cluster.join("w1", credit=9)
    cluster.submit(array={"last": 3, "limit": 1})
    uid = cluster.current()
    assert assigned(cluster.cancel("job", 0)) == []
    assert len(assigned(cluster.end(uid, "killed"))) == 1


def test_an_open_array_takes_members_until_it_is_closed(cluster: Cluster) -> None:
    cluster.join("w1", credit=20, batch=20)
    cluster.submit(array={"last": -1, "open": True})
    assert (cluster.job().total, cluster.job().state) == (0, JobState.PENDING)
    assert len(assigned(cluster.extend("job", 3))) == 3
    for index in range(3):
        cluster.end(cluster.current("job", index))
    assert not cluster.job().state.final
    assert len(assigned(cluster.extend("job", 2))) == 2
    cluster.extend("job", 0, close=True)
    assert not cluster.job().state.final
    for index in (3, 4):
        cluster.end(cluster.current("job", index))
    assert (cluster.job().state, cluster.job().succeeded) == (JobState.SUCCEEDED, 5)
    cluster.extend("job", 5)
    assert cluster.job().total == 5


def test_closing_an_array_that_has_ended_ends_the_job(cluster: Cluster) -> None:
    cluster.join("w1", credit=5)
    cluster.submit(array={"open": True})
    cluster.end(cluster.current("job", 0))
    assert not cluster.job().state.final
    cluster.extend("job", 0, close=True)
    assert cluster.job().state is JobState.SUCCEEDED


def test_cancelling_an_empty_open_array_kills_it(cluster: Cluster) -> None:
    cluster.submit(array={"last": -1, "open": True})
    cluster.cancel("job")
    assert cluster.job().state is JobState.KILLED


def test_an_extended_array_behind_a_capped_one_is_placed_once(cluster: Cluster) -> None:
    cluster.join("w1", credit=2, batch=20)
    cluster.submit("capped", array={"last": 9, "limit": 1})
    cluster.submit("open", array={"open": True})
    assert len(cluster.held("w1")) == 2
    cluster.poll("w1", 3)
    cluster.extend("open", 2)
    cluster.submit("last")
    assert [cluster.attempt(uid).job_id for uid in cluster.held("w1")] == [
        "capped",
        "open",
        "open",
        "open",
        "last",
    ]


def test_a_pass_that_is_cut_goes_on_with_the_same_array() -> None:
    cluster = Cluster(Rules(pass_placements=3))
    cluster.join("w1", credit=10, batch=10)
    assert len(assigned(cluster.submit(array={"last": 19}))) == 10


def test_a_task_queued_again_twice_has_one_place_in_the_line(cluster: Cluster) -> None:
    cluster.join("w1", credit=2, batch=9)
    cluster.submit("capped", array={"last": 9, "limit": 1})
    cluster.submit("job", retries=9)
    for _ in range(3):
        cluster.end(cluster.current("job"), "failed")
        cluster.poll("w1", 1)
    bucket = next(iter(cluster.state.backlog.buckets.values()))
    places = bucket.entries[bucket.head :]
    assert len(places) == len(set(places))
    assert cluster.task("job").attempts == 4
