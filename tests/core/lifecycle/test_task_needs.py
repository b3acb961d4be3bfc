"""A job may wait for one task of another: a call, or a member of an array."""

from __future__ import annotations

import pytest
from tests.core.harness import Cluster

from dray.core.model.records.records import JobState
from dray.core.model.specs.dependency import Need, need_problem, read_need


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.join("w1", credit=8, batch=2)
    return made


def test_a_condition_names_a_task() -> None:
    assert read_need("fail:job/7") == Need("fail", "job", 7)
    assert (str(Need("ok", "job", 7)), Need("ok", "job", 7).words) == ("ok:job/7", "task job/7 to succeed")
    assert need_problem("ok:job/7") == ""
    assert need_problem("ok:job/x")
    assert need_problem("ok:/7")


def test_a_call_that_ends_well_lets_those_start_that_waited_for_it(cluster: Cluster) -> None:
    cluster.map(count=4)
    cluster.submit("then", after=["ok:job/1"])
    cluster.submit("other", after=["ok:job/3"])
    first, second = cluster.lanes()
    cluster.returns(first.uid, [0])
    assert cluster.job("then").barred
    cluster.returns(second.uid, [1])
    assert not cluster.job("then").after
    assert cluster.job("other").after == ("ok:job/3",)
    assert cluster.job().state is JobState.RUNNING


def test_a_call_that_fails_ends_those_that_wanted_it_to_succeed(cluster: Cluster) -> None:
    cluster.map(count=2)
    cluster.submit("then", after=["ok:job/0", "ok:job/1"])
    cluster.submit("chained", after=["any:then/0"])
    cluster.submit("cleaner", after=["fail:job/0"])
    cluster.returns(cluster.lanes()[0].uid, [0], "failed")
    assert cluster.job("then").state is JobState.KILLED
    assert "task job/0 to succeed" in cluster.job("then").error
    assert not cluster.job("chained").barred
    assert not cluster.job("cleaner").barred


def test_a_retry_is_no_end(cluster: Cluster) -> None:
    cluster.map(count=1, retries=1)
    cluster.submit("then", after=["ok:job/0"])
    cluster.returns(cluster.lanes()[0].uid, [0], "failed")
    assert cluster.job("then").barred
    cluster.returns(cluster.lanes()[0].uid, [0])
    assert not cluster.job("then").barred


def test_a_cancelled_call_and_one_that_never_ran_count_as_not_succeeded(cluster: Cluster) -> None:
    cluster.map(count=40)
    cluster.submit("first", after=["ok:job/0"])
    cluster.submit("waiting", after=["ok:job/20"])
    cluster.submit("last", after=["ok:job/39"])
    cluster.cancel("job", 0)
    cluster.cancel("job", 20)
    assert [cluster.job(name).state for name in ("first", "waiting")] == [JobState.KILLED] * 2
    cluster.cancel("job")
    assert cluster.job("last").state is JobState.KILLED
    assert not cluster.state.task_waiters
    assert not cluster.state.dependents


def test_an_ordinary_task_of_an_array_counts_too(cluster: Cluster) -> None:
    cluster.submit("array", array={"last": 3})
    cluster.submit("then", after=["ok:array/0"])
    uid = cluster.current("array", 0)
    cluster.run(uid)
    cluster.end(uid)
    assert not cluster.job("then").barred


def test_whoever_stops_waiting_is_struck_off(cluster: Cluster) -> None:
    cluster.map(count=40)
    cluster.submit("then", after=["ok:job/30"])
    cluster.cancel("then")
    assert not cluster.state.task_waiters
    assert not cluster.state.dependents
