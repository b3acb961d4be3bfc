"""Which workers are asked for, when, how many, and which of them may go again: decided by values alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.core.harness import Cluster

from dray.agent.decide.machine import FEATURES
from dray.agent.tunnel.tunnels import FEATURES as TUNNEL
from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.providers import launches
from dray.core.lifecycle.state.effects import Alarm, Note
from dray.core.lifecycle.state.service_events import LaunchMoved
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.check import check_policy
from dray.core.model.records.ledger import LaunchRecord
from dray.core.scheduling.launches import imagined
from dray.core.scheduling.launches.decide import why_not
from dray.errors import InvalidPolicy

COMMAND: dict[str, Any] = {
    "command": ["start", "{id}"],
    "end": ["stop", "{handle}"],
    "wait_s": 60,
    "idle_s": 600,
}
SMALL = {"offers": {"cpus": 4}, "most": 4}
CARDS = {"offers": {"cpus": 32, "gpus": 8, "gpu_type": "A100", "vram": "80G"}, "most": 2}


def govern(cluster: Cluster, prices: dict[str, float] | None = None, **launchers: dict[str, Any]) -> None:
    cluster.govern(
        providers={
            name: {"price_per_hour": (prices or {}).get(name, 0), "launch": {**COMMAND, **more}}
            for name, more in launchers.items()
        }
    )


def live(cluster: Cluster, name: str = "site") -> dict[str, LaunchRecord]:
    found = launches.of_launcher(cluster.state, name)
    return {one: record for one, record in found if record.state not in launches.OVER}


def states(cluster: Cluster, name: str = "site") -> list[str]:
    return [record.state for _, record in launches.of_launcher(cluster.state, name)]


def come(cluster: Cluster, launch_id: str, cpus: int = 4) -> None:
    """What the hub's shell and the machine do: the command runs, an agent registers under the launch's name."""
    cluster.turn(LaunchMoved(launch_id, launches.STARTING))
    cluster.join(launch_id, cpus=cpus, credit=cpus)
    cluster.beating[launch_id] = None


def end(cluster: Cluster, launch_id: str) -> None:
    cluster.leave(launch_id)
    cluster.beating.pop(launch_id, None)
    cluster.turn(
        LaunchMoved(launch_id, launches.FAILED if live(cluster)[launch_id].failed else launches.ENDED)
    )


def test_a_machine_is_asked_for_once_somebody_has_waited_long_enough_and_never_twice(
    cluster: Cluster,
) -> None:
    govern(cluster, site=SMALL)
    cluster.submit("job", min_cpu_cores=2)
    cluster.advance(50)
    assert not live(cluster)
    effects = cluster.advance(20)
    assert states(cluster) == ["asked"]
    assert [note.job_id for note in effects if isinstance(note, Note) and note.type == "launch_asked"] == [
        "job"
    ]
    # What is coming counts, and so does what is left of it: three more tasks fit on two machines.
    for number in range(3):
        cluster.submit(f"more{number}", min_cpu_cores=2)
    cluster.advance(120)
    assert states(cluster) == ["asked", "asked"]
    first, second = live(cluster)
    come(cluster, first)
    come(cluster, second)
    assert len(cluster.held(first)) == len(cluster.held(second)) == 2
    for uid in [*cluster.held(first), *cluster.held(second)]:
        cluster.run(uid)
    cluster.advance(300)
    assert states(cluster) == ["joined", "joined"]


def test_a_worker_that_was_asked_for_is_called_by_its_launcher(cluster: Cluster) -> None:
    govern(cluster, site={**SMALL, "offers": {"cpus": 4, "labels": {"disk": "fast"}}})
    cluster.submit("job", min_cpu_cores=2, require=["disk=fast", "provider=site"])
    cluster.advance(70)
    (launch,) = live(cluster)
    come(cluster, launch)
    assert len(cluster.held(launch)) == 1
    assert cluster.state.workers[launch].all_labels["launch"] == launch
    # A stranger of another name is nobody's launch, whatever it says of itself.
    cluster.join("other", labels={"launch": launch})
    assert states(cluster) == ["joined"]


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"min_cpu_cores": 100}, []),  # no kind of them holds it
        ({"gpu_count": 4, "gpu_type": "A100"}, ["cards"]),
        ({"gpu_count": 4, "gpu_type": "H100"}, []),
        ({"min_cpu_cores": 1}, ["site"]),  # the cheaper of two that would do
        ({"min_cpu_cores": 1, "require": ["disk=fast"]}, []),
        ({"min_cpu_cores": 1, "require": ["provider=cards"]}, ["cards"]),
        ({"node_count": 2, "gpu_count": 8}, ["cards", "cards"]),
        ({"node_count": 3, "gpu_count": 8}, []),  # all or none, and there may be two
    ],
)
def test_the_cheapest_kind_that_holds_it_is_asked_for(
    cluster: Cluster, spec: dict[str, Any], asked: list[str]
) -> None:
    govern(cluster, {"site": 1, "cards": 20}, cards=CARDS, site=SMALL)
    cluster.submit("job", **spec)
    cluster.advance(200)
    names = [record.launcher for name in ("cards", "site") for record in live(cluster, name).values()]
    assert names == asked


def test_what_waits_for_something_else_asks_for_no_machine(cluster: Cluster) -> None:
    cluster.govern(
        quotas=[{"user": "ann", "tasks": 1}],
        providers={"site": {"launch": {**COMMAND, **SMALL}}},
    )
    cluster.join("w", cpus=4, credit=8)
    cluster.submit("runs", min_cpu_cores=1)
    cluster.run(cluster.current("runs"))
    cluster.submit("quota", min_cpu_cores=1)
    cluster.submit("held", user="bob", min_cpu_cores=8)
    cluster.hold("held")
    cluster.advance(300)
    assert not live(cluster)


def test_an_idle_worker_goes_by_a_drain_and_one_that_holds_work_never(cluster: Cluster) -> None:
    govern(cluster, site=SMALL)
    cluster.submit("job", min_cpu_cores=4)
    cluster.submit("other", min_cpu_cores=4)
    cluster.advance(70)
    first, second = live(cluster)
    come(cluster, first)
    come(cluster, second)
    (uid,) = cluster.held(second)
    cluster.run(uid)
    cluster.end(uid)
    cluster.run(*cluster.held(first))
    cluster.advance(590)
    assert states(cluster) == ["joined", "joined"]
    cluster.advance(20)
    assert states(cluster)[1] in ("draining", "ending")
    assert cluster.state.workers[second].draining
    cluster.advance(10)
    assert states(cluster) == ["joined", "ending"]
    end(cluster, second)
    cluster.advance(10_000)
    assert states(cluster) == ["joined", "ended"]
    assert len(cluster.held(first)) == 1


def test_some_are_kept_and_never_more_than_most(cluster: Cluster) -> None:
    govern(cluster, site={**SMALL, "min": 1, "most": 2})
    cluster.advance(10)
    assert states(cluster) == ["asked"]
    for number in range(20):
        cluster.submit(f"job{number}", min_cpu_cores=4)
    cluster.advance(200)
    assert states(cluster) == ["asked", "asked"]
    first, second = live(cluster)
    come(cluster, first)
    come(cluster, second)
    for number in range(20):
        cluster.cancel(f"job{number}")
    for uid in [*cluster.held(first), *cluster.held(second)]:
        cluster.end(uid, "killed")
    cluster.advance(2000)
    assert sorted(record.state for record in live(cluster).values()) == ["ending", "joined"]


def test_whoever_fails_is_left_alone_twice_as_long_each_time(cluster: Cluster) -> None:
    govern(cluster, site={**SMALL, "start_s": 300})
    cluster.submit("job", min_cpu_cores=4)
    begun: list[int] = []
    for _ in range(4):
        while not live(cluster):
            cluster.advance(5)
        begun.append(cluster.now_ms)
        (launch,) = live(cluster)
        effects = cluster.turn(LaunchMoved(launch, launches.ENDING, "sbatch: no such partition", failed=True))
        assert any(isinstance(one, Alarm) and "no such partition" in one.text for one in effects)
        end_now = LaunchMoved(launch, launches.FAILED)
        cluster.turn(end_now)
    waits = [later - sooner for sooner, later in pairwise(begun)]
    assert waits == [30_000, 60_000, 120_000]
    launch_policy = launches.launch_of(cluster.state, "site")
    assert launch_policy is not None
    assert "no such partition" in why_not(cluster.state, "site", launch_policy)


def test_whoever_never_comes_is_ended_and_counts_as_a_failure(cluster: Cluster) -> None:
    govern(cluster, site={**SMALL, "start_s": 300})
    cluster.submit("job", min_cpu_cores=4)
    cluster.advance(70)
    (launch,) = live(cluster)
    cluster.turn(LaunchMoved(launch, launches.STARTING))
    cluster.advance(290)
    assert states(cluster) == ["starting"]
    cluster.advance(20)
    assert states(cluster) == ["ending"]
    assert live(cluster)[launch].failed


def test_a_budget_of_the_day_is_kept_and_comes_back_the_next(cluster: Cluster) -> None:
    cluster.now_ms += launches.DAY_MS - cluster.clock.at_ms % launches.DAY_MS  # midnight
    govern(cluster, {"site": 10}, site={**SMALL, "most": 1, "budget_per_day": 5})
    cluster.submit("job", min_cpu_cores=4)
    cluster.advance(70)
    (launch,) = live(cluster)
    come(cluster, launch)
    (uid,) = cluster.held(launch)
    cluster.run(uid)
    cluster.advance(2400)  # 40 min at 10 an hour
    cluster.end(uid)
    cluster.advance(620)
    end(cluster, launch)
    cluster.submit("again", min_cpu_cores=4)
    cluster.advance(3600)
    assert not live(cluster)
    policy = launches.launch_of(cluster.state, "site")
    assert policy is not None
    assert "budget" in why_not(cluster.state, "site", policy)
    cluster.now_ms += 24 * 3_600_000
    cluster.advance(30)
    assert len(live(cluster)) == 1


def test_so_many_an_hour_are_asked_for_and_no_more(cluster: Cluster) -> None:
    govern(cluster, site={**SMALL, "most": 50, "per_hour": 6, "start_s": 7200})
    for number in range(20):
        cluster.submit(f"job{number}", min_cpu_cores=4)
    cluster.advance(100)
    assert len(live(cluster)) == 6
    policy = cluster.state.policy.providers["site"].launch
    assert policy is not None
    assert why_not(cluster.state, "site", policy) == "it may start another in 10 min (6 an hour)"
    cluster.advance(1190)
    assert len(live(cluster)) == 8


def test_nothing_is_looked_at_on_a_site_without_launchers(cluster: Cluster) -> None:
    cluster.submit("job", min_cpu_cores=4)
    cluster.advance(600)
    assert not cluster.state.launch_look_ms
    assert not any(kind == "launch" for _, kind, _ in cluster.state.timers)


def test_a_launcher_that_leaves_the_policy_lets_its_workers_finish(cluster: Cluster) -> None:
    govern(cluster, site=SMALL)
    cluster.submit("job", min_cpu_cores=4)
    cluster.advance(70)
    (launch,) = live(cluster)
    come(cluster, launch)
    (uid,) = cluster.held(launch)
    cluster.run(uid)
    cluster.govern()
    cluster.advance(600)
    assert states(cluster) == ["joined"]
    assert cluster.held(launch) == [uid]
    cluster.end(uid)
    cluster.advance(20)
    assert states(cluster) == ["ending"]


def test_launches_are_told_again_from_the_log_and_from_rows(cluster: Cluster) -> None:
    govern(cluster, site=SMALL)
    cluster.submit("job", min_cpu_cores=4)
    cluster.advance(70)
    (launch,) = live(cluster)
    come(cluster, launch)
    again = State()
    for clock, fact in cluster.journal:
        apply(again, fact, clock)
    assert again.ledger[launches.KIND, launch] == cluster.state.ledger[launches.KIND, launch]
    assert again.ledger[launches.LAUNCHER, "site"] == cluster.state.ledger[launches.LAUNCHER, "site"]


def test_what_is_expected_of_a_worker_is_what_agents_say() -> None:
    assert set(imagined.FEATURES) == {*FEATURES, *TUNNEL}


@pytest.mark.parametrize(
    ("launch", "problem"),
    [
        ({}, "exactly one of slurm, kubernetes, ssh, command"),
        ({"slurm": {"partition": "x"}, "ssh": {"hosts": ["a"]}}, "slurm and ssh"),
        ({"command": ["a"]}, "end"),
        ({"command": ["a", "{nothing}"], "end": ["b"]}, "{nothing} stands for nothing"),
        ({"slurm": {}, "end": ["b"]}, "goes with command alone"),
        ({"slurm": {}, "min": 3, "most": 2}, "must not be above most"),
        ({"slurm": {}, "budget_per_day": 3}, "needs a price"),
        ({"ssh": {"hosts": ["a"]}, "most": 2}, "number of hosts"),
        ({"kubernetes": {}}, "image"),
        ({"slurm": {"partitoin": "x"}}, "partition"),
    ],
)
def test_a_launcher_that_cannot_work_is_refused_with_words(launch: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        check_policy({"providers": {"site": {"launch": launch}}})
    assert any(problem in f"{one.where}: {one.what}" for one in refused.value.problems), (
        refused.value.problems
    )
