"""Work that would run faster on other cards: single moves, exchanges of two, and what keeps guesses in bounds."""

from __future__ import annotations

from tests.core.harness import Cluster

from dray.core.lifecycle.state.events import Progressed
from dray.core.scheduling.rebalancing.performance import MOST_FOUND
from dray.core.scheduling.rebalancing.proposals import PERFORMANCE, Proposal
from dray.core.scheduling.rebalancing.scene import Scene
from dray.core.scheduling.rebalancing.strategies import STRATEGIES

HOURS = 8 * 3600


def know(cluster: Cluster, name: str, error: float = 0.0, **rates: float) -> None:
    for kind, rate in rates.items():
        cluster.state.experience.speeds.learn(name, kind, rate, 8, error)


def join(cluster: Cluster, worker: str, kind: str, gpus: int = 1) -> None:
    cluster.join(worker, credit=100, gpus=gpus, gpu_type=kind)


def run(cluster: Cluster, job: str, name: str, expected_s: float = HOURS) -> str:
    cluster.submit(job, name=name, gpu_count=1, expected_runtime_s=expected_s)
    uid = cluster.current(job)
    cluster.run(uid)
    return uid


def look(cluster: Cluster) -> tuple[list[Proposal], float]:
    scene, strategy = Scene(cluster.state), STRATEGIES[PERFORMANCE]
    found = list(strategy.propose(scene))
    return found, strategy.level(scene, found)


def goes(found: list[Proposal]) -> list[list[tuple[str, str]]]:
    return [[(move.uid, move.worker) for move in proposal.moves] for proposal in found]


def crossed(cluster: Cluster, expected_s: float = HOURS) -> tuple[str, str]:
    """Two who sit on each other's card: one gains much by the fast card, the other next to nothing."""
    join(cluster, "w1", "V100")
    little = run(cluster, "little", "little", expected_s)
    join(cluster, "w2", "K80")
    much = run(cluster, "much", "much", expected_s)
    cluster.advance(120)
    return little, much


def test_two_change_places_where_both_together_win(cluster: Cluster) -> None:
    little, much = crossed(cluster)
    know(cluster, "little", v100=10, k80=9)
    know(cluster, "much", v100=10, k80=1)
    found, level = look(cluster)
    assert goes(found) in ([[(little, "w2"), (much, "w1")]], [[(much, "w1"), (little, "w2")]])
    ((gain, cost, why),) = [(one.gain, one.cost, one.why) for one in found]
    # 0.9 more of its speed for the one, 0.1 less for the other, until the former ends: a tenth of what is left.
    assert gain == round(0.8 * 0.1 * (HOURS - 120) * 1000)
    assert 2 * cost <= gain
    assert "10 times as fast" in why
    assert "1.1 times slower" in why
    assert level == 0.4


def test_nothing_is_proposed_that_wins_nothing_together(cluster: Cluster) -> None:
    crossed(cluster)
    know(cluster, "little", v100=10, k80=2)
    know(cluster, "much", v100=10, k80=2)
    assert look(cluster) == ([], 0.0)


def test_nothing_is_proposed_for_what_soon_ends_or_of_which_nobody_knows_how_long_it_runs(
    cluster: Cluster,
) -> None:
    crossed(cluster, expected_s=1800)
    know(cluster, "little", v100=10, k80=9)
    know(cluster, "much", v100=10, k80=1)
    assert look(cluster)[0] == []


def test_one_goes_alone_into_idle_room_on_a_better_kind(cluster: Cluster) -> None:
    join(cluster, "w1", "K80")
    uid = run(cluster, "job", "job")
    join(cluster, "w2", "V100")
    know(cluster, "job", v100=10, k80=4)
    cluster.advance(60)
    found, level = look(cluster)
    assert goes(found) == [[(uid, "w2")]]
    assert level == 0.6
    know(cluster, "job", v100=10, k80=9.9)
    assert look(cluster)[0] == []


def test_a_record_that_was_wrong_by_half_of_what_it_decides_decides_nothing(cluster: Cluster) -> None:
    crossed(cluster)
    know(cluster, "little", v100=10, k80=9)
    know(cluster, "much", error=0.39, v100=10, k80=1)
    assert len(look(cluster)[0]) == 1
    know(cluster, "much", error=0.41, v100=10, k80=1)
    assert look(cluster)[0] == []


def test_one_sample_decides_nothing(cluster: Cluster) -> None:
    crossed(cluster)
    know(cluster, "little", v100=10, k80=9)
    know(cluster, "much", v100=10)
    cluster.state.experience.speeds.learn("much", "k80", 1.0, 1, 0.0)
    assert look(cluster)[0] == []


def test_an_unknown_kind_is_tried_by_one_of_a_name_that_runs_long_enough(cluster: Cluster) -> None:
    """The second kind is a poor one; the third might be better."""
    join(cluster, "w1", "K80")
    join(cluster, "w2", "K80")
    first, second = run(cluster, "one", "job"), run(cluster, "two", "job")
    join(cluster, "w3", "P100", gpus=4)
    know(cluster, "job", v100=10, k80=4)
    cluster.advance(60)
    (proposal,) = look(cluster)[0]
    assert "nobody of its name was seen there" in proposal.why
    (tried,) = goes([proposal])
    assert tried in ([(first, "w3")], [(second, "w3")])
    cluster.submit("three", name="job", gpu_count=1, expected_runtime_s=HOURS)
    cluster.run(cluster.current("three"))  # on the third kind, where nobody of its name was seen yet
    assert look(cluster)[0] == []


def test_what_is_left_goes_by_steps_where_it_tells_them(cluster: Cluster) -> None:
    """Half of it was done before, on another card: how long this attempt ran says nothing of what is left."""
    join(cluster, "w1", "K80")
    uid = run(cluster, "job", "job", expected_s=0)
    know(cluster, "job", v100=10, k80=4)
    cluster.advance(10)
    cluster.turn(Progressed("w1", uid, 40_000, 0.5))
    cluster.advance(1000)
    assert Scene(cluster.state).left_ms(cluster.attempt(uid)) == 40_000 / 4 * 1000 - 1_000_000


def test_a_look_at_many_is_bounded(cluster: Cluster) -> None:
    for number in range(8):
        join(cluster, f"w{number}", "V100" if number % 2 else "K80", gpus=8)
    cluster.submit("many", name="much", gpu_count=1, expected_runtime_s=HOURS, array={"last": 63})
    know(cluster, "much", v100=10, k80=1)
    for number in range(8):
        cluster.accept_all(f"w{number}")
    cluster.advance(60)
    assert look(cluster)[0] == []
    join(cluster, "idle", "V100", gpus=8)
    found = look(cluster)[0]
    assert len(found) == 8 <= MOST_FOUND
    assert len({move.uid for proposal in found for move in proposal.moves}) == 8
