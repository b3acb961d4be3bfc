"""A state that is kept warm beside a leader: what it comes to is what a recovery would come to, whatever happens."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.core.harness import Cluster
from tests.properties.world import records

from dray.core.lifecycle.holding.attempts import adoptable
from dray.core.lifecycle.invariants import problems
from dray.core.lifecycle.recovery import take_touched
from dray.core.lifecycle.state.events import (
    Clock,
    EpochStarted,
    Fact,
    JobsSubmitted,
    NewJob,
    WorkerLabelled,
    pack_facts,
)
from dray.core.lifecycle.state.parties import QuotaGate
from dray.core.lifecycle.state.state import State, Touched
from dray.core.lifecycle.state.timings import Rules
from dray.core.model.policies.policy import Budget, Quota
from dray.core.model.records.ledger import Meter
from dray.core.model.specs.spec import JobSpec, pack_spec
from dray.errors import StoreAway
from dray.hub.engine.follower import Abandoned, Follower
from dray.hub.engine.projection import build_projection
from dray.hub.engine.recovery import Fold, Skipped, recover
from dray.hub.engine.turns import Commit, Conductor, Decision, Request
from dray.hub.gateways.frames import TurnTold
from dray.hub.leadership import Following
from dray.hub.rows import Rows
from dray.hub.store.base import Followed, Position, Snapshot, Store, Turn
from dray.hub.store.memory import MemoryFile, MemoryStore
from dray.hub.store.sqlite.store import SqliteStore
from dray.sim.faults.run import History
from dray.sim.faults.world.world import SMALL

SPEC = pack_spec(JobSpec(command=["true"], user_id="ana"))


class World:
    """The store of a simulated world, whose file is another one after a restore."""

    def __init__(self, history: History) -> None:
        self._history = history

    @property
    def store(self) -> MemoryStore:
        return MemoryStore(self._history.hub.file)

    def load(self) -> Snapshot:
        return self.store.load()

    def follow(self, after_seq: int, limit: int = 1000) -> Followed:
        return self.store.follow(after_seq, limit)


class Leader:
    """Commits turns as an engine does, and writes rows when it is told to."""

    def __init__(self, store: Store, epoch: int = 0) -> None:
        self.store = store
        self.epoch = store.begin_epoch() if not epoch else store.raise_epoch(epoch)
        recovered = recover(store, Rules())
        self.state, self.now_ms = recovered.state, recovered.now_ms
        self._conductor = Conductor(Rows(self.state, store), recovered.seq)
        self.turn(EpochStarted(self.epoch))

    def turn(self, *facts: Fact) -> None:
        self.now_ms += 1
        decide = Request(lambda state, clock: Decision(list(facts)), None)
        for step in self._conductor.turn([decide], (), Clock(self.now_ms, self.now_ms)):
            if isinstance(step, Commit):
                self.store.commit(step.turn)

    def submit(self, name: str) -> None:
        self.turn(JobsSubmitted((NewJob(name, "ana", SPEC),)))

    def write_rows(self) -> None:
        touched, clock = take_touched(self.state), Clock(self.now_ms, self.now_ms)
        self.store.project(build_projection(self.state, touched, self._conductor.seq, clock))


def catch_up(follower: Follower) -> State:
    while follower.look():
        pass
    assert follower._fold is not None
    assert follower.lag == 0
    return follower._fold.state


def compare(state: State, other: State) -> None:
    """The same, byte for byte. Of attempts that have ended a recovery recalls some that nobody needs any more."""
    ours, theirs = records(state), records(other)
    for one, kept in ((state, ours), (other, theirs)):
        kept["attempts"] = {
            uid: packed
            for uid, packed in kept["attempts"].items()
            if (attempt := one.attempts[uid]).phase.live or adoptable(one, attempt)
        }
    assert ours == theirs
    assert state.counters == other.counters
    assert list(state.jobs) == list(other.jobs)
    assert not problems(state)


@pytest.mark.parametrize("seed", range(6))
def test_a_follower_comes_to_what_a_recovery_comes_to(seed: int) -> None:
    history, draw, told = History(seed, SMALL), random.Random(seed), list[str]()
    world, compared = World(history), 0
    follower = Follower(world, history.hub.rules, tell=told.append)
    while history.world.now_ms < history.world.size.span_ms and history.world.step():
        if draw.random() < 0.2 and follower.look():
            # Now and then it is behind when others look.
            continue
        if draw.random() < 0.02:
            state, recovered = catch_up(follower), recover(world.store, history.hub.rules)
            assert follower.reached is not None
            assert follower.reached.seq == recovered.seq
            compare(state, recovered.state)
            assert [*state.timers, *state.polls, *state.leads] == []
            compared += 1
    assert compared > 20
    assert bool(told) == history.restored
    assert (follower.loads > 1) == history.restored
    handed, recovered = follower.finish(), recover(world.store, history.hub.rules)
    compare(handed.state, recovered.state)
    assert (handed.seq, handed.now_ms) == (recovered.seq, recovered.now_ms)
    assert vars(handed.state.touched) == vars(_unwritten(world)), "the rows that are still to be written"


def _unwritten(world: World) -> Touched:
    """What the turns changed that the rows do not show."""
    fold = Fold(world.load(), Rules(), Skipped())
    take_touched(fold.state)
    for entry in world.follow(fold.seq).entries:
        fold.take(entry)
    return fold.state.touched


followed = pytest.mark.parametrize("open_store", ["memory", "postgres"], indirect=True)


@followed
def test_what_is_committed_is_followed_and_let_go_when_its_rows_are_there(
    open_store: Callable[[], Any],
) -> None:
    leader = Leader(open_store())
    leader.submit("a1")
    follower = Follower(open_store(), Rules())
    assert set(catch_up(follower).jobs) == {"a1"}
    leader.submit("a2")
    state = catch_up(follower)
    compare(state, leader.state)
    assert [seq for seq, _ in follower._unwritten] == [2, 3]
    leader.write_rows()
    leader.submit("a3")
    compare(catch_up(follower), leader.state)
    assert [seq for seq, _ in follower._unwritten] == [4]
    assert follower.loads == 1
    handed = follower.finish()
    assert (list(handed.state.touched.jobs), handed.seq, handed.faults) == (["a3"], 4, [])


@followed
def test_a_load_sees_one_moment_though_rows_are_written_meanwhile(open_store: Callable[[], Any]) -> None:
    leader, reader = Leader(open_store()), open_store()
    leader.submit("a1")
    leader.write_rows()
    snapshot = reader.load()
    leader.submit("a2")
    leader.write_rows()
    if not isinstance(reader, MemoryStore):
        assert ([job.id for job in snapshot.jobs], snapshot.applied_seq) == (["a1"], 2)
    snapshot.close()


@followed
def test_a_log_that_went_back_is_loaded_anew(open_store: Callable[[], Any]) -> None:
    store, told = open_store(), list[str]()
    leader = Leader(store)
    follower = Follower(open_store(), Rules(), tell=told.append)
    leader.submit("a1")
    leader.write_rows()
    leader.submit("a2")
    assert set(catch_up(follower).jobs) == {"a1", "a2"}
    _cut_log(store, 3)
    assert set(catch_up(follower).jobs) == {"a1"}
    assert told == ["its last turn is 2, and turn 3 was there"]
    assert follower.loads == 2


@followed
def test_another_history_at_the_same_turn_is_loaded_anew(open_store: Callable[[], Any]) -> None:
    store, told = open_store(), list[str]()
    leader = Leader(store)
    follower = Follower(open_store(), Rules(), tell=told.append)
    leader.submit("a1")
    assert set(catch_up(follower).jobs) == {"a1"}
    _cut_log(store, 2)
    other = Leader(open_store())
    other.submit("b1")
    assert set(catch_up(follower).jobs) == {"b1"}
    assert told == ["turn 2 is of epoch 2, and was of epoch 1"]


@pytest.mark.parametrize("jumps", [True, False], ids=["its number is left out", "another has its number"])
def test_a_turn_that_was_lost_unseen_is_noticed(jumps: bool) -> None:
    """After a failover the next hub may count to the same epoch, and has gone on before anybody looked."""
    file, told = MemoryFile(), list[str]()
    leader = Leader(store := MemoryStore(file))
    leader.submit("a1")
    follower = Follower(MemoryStore(file), Rules(), tell=told.append)
    catch_up(follower)
    _cut_log(store, 2)
    leader._conductor.seq -= 0 if jumps else 1
    leader.now_ms += 7
    leader.submit("b1")
    leader.submit("b2")
    other = recover(MemoryStore(file), Rules()).state
    compare(catch_up(follower), other)
    assert (follower.loads, len(told)) == (2, 1)


def test_rows_that_went_back_are_loaded_anew() -> None:
    """What was let go because its rows were there would never be written again."""
    file, told = MemoryFile(), list[str]()
    leader = Leader(store := MemoryStore(file))
    leader.submit("a1")
    before = (file.applied_seq, dict(file.jobs))
    leader.write_rows()
    follower = Follower(MemoryStore(file), Rules(), tell=told.append)
    assert set(catch_up(follower).jobs) == {"a1"}
    leader.submit("a2")
    catch_up(follower)
    store.file.applied_seq, store.file.jobs = before
    assert set(catch_up(follower).jobs) == {"a1", "a2"}
    assert (follower.loads, told) == (2, ["its rows are of turn 0, and those of turn 2 were there"])
    assert set(follower.finish().state.touched.jobs) == {"a1", "a2"}


@pytest.mark.parametrize("early", [False, True], ids=["beats after the end", "beats before it is committed"])
def test_an_end_is_charged_to_its_period_whoever_takes_over(
    open_store: Callable[[], Any], early: bool
) -> None:
    """The store tells the time of the leader's last beat, by which the next period has begun."""
    store, cluster, followers = open_store(), Cluster(), list[Follower]()
    store.begin_epoch()
    cluster.rule(quotas=(Quota(user="*", gpu_hours=Budget(hard=1, per_s=100)),))
    cluster.join("w1", credit=10, gpus=2)
    cluster.advance(100 - cluster.now_ms % 100_000 / 1000)
    for name in ("long", "short"):
        cluster.submit(name, gpu_count=1)
        cluster.run(cluster.current(name))
    cluster.advance(30)
    _commit(store, cluster)
    store.project(
        build_projection(cluster.state, take_touched(cluster.state), store.position().seq, cluster.clock)
    )
    cluster.advance(20)
    cluster.end(cluster.current("short"))
    ended_ms = cluster.now_ms
    beat = partial(store.save_clock, ended_ms + 60_000, 0, b"")
    if early:
        beat()
    if not isinstance(store, SqliteStore):
        followers.append(Follower(open_store(), Rules()))
        catch_up(followers[0])
    _commit(store, cluster)
    if not early:
        beat()
    states = [cluster.state, recover(store, Rules()).state, *(one.finish().state for one in followers)]
    key = "quota user ann each"
    for state in states:
        assert state.ledger["meter", key] == Meter(
            since_ms=ended_ms, period=ended_ms // 100_000, gpu_ms=50_000 * 1000
        )
        gate = state.parties.gates[key]
        assert isinstance(gate, QuotaGate)
        # What still runs: all of it in this period, and from its first moment on in the next.
        assert [gate.used_ms(ended_ms + after_ms) for after_ms in (0, 60_000)] == [100_000_000, 10_000_000]


def _commit(store: Any, cluster: Cluster) -> None:
    """Write what has happened since the last time, a turn for each fact."""
    done = store.position().seq
    for seq, (clock, fact) in enumerate(cluster.journal[done:], done + 1):
        store.commit(Turn(seq, clock.now_ms, clock.at_ms, pack_facts([fact]), b""))


def _cut_log(store: Any, from_seq: int) -> None:
    """Take turns away, as a failover to a server that lacks them does."""
    if isinstance(store, MemoryStore):
        store.file.last_seq = from_seq - 1
        for seq in [seq for seq in store.file.log if seq >= from_seq]:
            del store.file.log[seq]
    else:
        store._loop.call(store._rows.ask("cut the log", "DELETE FROM dray.log WHERE seq >= $1", from_seq))


def test_turns_that_are_in_the_rows_alone_are_read_from_there() -> None:
    file = MemoryFile()
    leader, told = Leader(MemoryStore(file)), list[str]()
    follower = Follower(MemoryStore(file), Rules(), tell=told.append)
    catch_up(follower)
    for name in ("a1", "a2"):
        leader.submit(name)
    leader.write_rows()
    file.log.clear()
    leader.submit("a3")
    assert set(catch_up(follower).jobs) == {"a1", "a2", "a3"}
    assert (follower.loads, told) == (2, [])


def test_a_turn_that_cannot_be_folded_is_left_out_and_told_of() -> None:
    file = MemoryFile()
    leader = Leader(MemoryStore(file))
    follower = Follower(MemoryStore(file), Rules())
    leader.submit("a1")
    catch_up(follower)
    seq = file.last_seq + 1
    # A worker that nobody has heard of is given a label.
    leader.store.commit(Turn(seq, 9, 9, pack_facts([WorkerLabelled("w", {}, "ana")]), b""))
    state = catch_up(follower)
    assert set(state.jobs) == {"a1"}
    assert len(follower.finish().faults) == 1


def test_one_that_is_told_to_stop_gives_a_load_up() -> None:
    follower = Follower(MemoryStore(), Rules())
    follower.stop()
    with pytest.raises(Abandoned):
        follower.look()


# --- turns that the leader tells of ---------------------------------------------------------------------------------


def told_by(file: MemoryFile, after_seq: int) -> list[Any]:
    """What a leader tells of the turns that it has committed since."""
    return MemoryStore(file).tail(after_seq, 1000)


def reached(follower: Follower) -> int:
    assert follower.reached is not None
    return follower.reached.seq


@pytest.mark.parametrize("seed", range(4))
def test_turns_that_are_told_and_turns_that_are_looked_up_come_to_the_same(seed: int) -> None:
    history, draw, told = History(seed, SMALL), random.Random(seed), list[str]()
    world = World(history)
    follower = Follower(world, history.hub.rules, tell=told.append)
    catch_up(follower)
    while history.world.now_ms < history.world.size.span_ms and history.world.step():
        if draw.random() < 0.3 and not history.restored:
            entries = told_by(history.hub.file, reached(follower))
            if entries and draw.random() < 0.1:
                # Some got lost on the way.
                del entries[draw.randrange(len(entries))]
            if follower.hear(entries):
                catch_up(follower)
        elif draw.random() < 0.02:
            compare(catch_up(follower), recover(world.store, history.hub.rules).state)
    assert follower.heard > 50
    assert bool(told) == history.restored
    handed, recovered = follower.finish(), recover(world.store, history.hub.rules)
    compare(handed.state, recovered.state)
    assert (handed.seq, handed.now_ms) == (recovered.seq, recovered.now_ms)
    assert vars(handed.state.touched) == vars(_unwritten(world)), "the rows that are still to be written"


def test_a_gap_an_earlier_turn_and_one_of_an_earlier_epoch_are_not_folded() -> None:
    file = MemoryFile()
    leader = Leader(MemoryStore(file), epoch=5)
    follower = Follower(MemoryStore(file), Rules())
    catch_up(follower)
    began = reached(follower)
    for name in ("a1", "a2", "a3"):
        leader.submit(name)
    first, second, third = told_by(file, began)
    assert follower.hear([second]), "the one before it is missing: the store has it"
    assert (reached(follower), follower.lag) == (began, 2)
    assert follower.hear([first._replace(epoch=4)])
    assert reached(follower) == began
    assert not follower.hear([first, first, second])
    assert not follower.hear([first, third])
    assert (reached(follower), follower.heard, follower.lag) == (began + 3, 3, 0)
    compare(catch_up(follower), leader.state)
    assert follower.loads == 1


def test_a_turn_that_is_told_of_and_cannot_be_folded_costs_a_load() -> None:
    file = MemoryFile()
    leader = Leader(MemoryStore(file))
    follower = Follower(MemoryStore(file), Rules())
    catch_up(follower)
    leader.store.commit(Turn(file.last_seq + 1, 9, 9, pack_facts([WorkerLabelled("w", {}, "ana")]), b""))
    leader._conductor.seq += 1
    leader.submit("a1")
    assert follower.hear(told_by(file, reached(follower)))
    assert set(catch_up(follower).jobs) == {"a1"}
    assert (follower.loads, len(follower.finish().faults)) == (2, 1)


class Seen:
    """What a store in PostgreSQL is told of one who follows."""

    def __init__(self) -> None:
        self.seq, self.warm = 0, False
        self.moved = asyncio.Event()

    def note_seen(self, seen: Position) -> None:
        self.seq = seen.seq
        self.moved.set()

    def set_warm(self, warm: bool) -> None:
        self.warm = warm

    async def reaches(self, seq: int) -> None:
        async with asyncio.timeout(30):
            while self.seq < seq:
                await self.moved.wait()
                self.moved.clear()


def follow_with(store: Any, told: list[str]) -> tuple[Seen, Following]:
    seen: Any = Seen()
    following = Following(seen, Follower(store, Rules(), tell=told.append))
    following.begin()
    return seen, following


def tell(following: Following, entries: list[Any], without: tuple[int, ...] = ()) -> None:
    for entry in entries:
        facts = None if entry.seq in without else entry.facts
        following.take(TurnTold(entry.epoch, entry.seq, entry.now_ms, entry.at_ms, facts))


class LookedAt(MemoryStore):
    """Counts looks, and can be away."""

    away = False

    def __init__(self, file: MemoryFile) -> None:
        super().__init__(file)
        self.looked = threading.Semaphore(0)

    def follow(self, after_seq: int, limit: int = 1000) -> Followed:
        self.looked.release()
        if self.away:
            raise StoreAway("the server is away")
        return super().follow(after_seq, limit)


async def test_what_is_told_is_folded_though_the_store_cannot_be_looked_at() -> None:
    file = MemoryFile()
    leader, store = Leader(MemoryStore(file)), LookedAt(file)
    seen, following = follow_with(store, [])
    await seen.reaches(file.last_seq)
    store.away = True
    for name in ("a1", "a2", "a3"):
        after = file.last_seq
        leader.submit(name)
        tell(following, told_by(file, after))
        await seen.reaches(file.last_seq)
    assert following.follower.heard == 3
    store.away = False
    await following.end()
    compare(catch_up(following.follower), leader.state)


async def test_one_that_is_too_large_to_be_told_is_looked_up() -> None:
    file = MemoryFile()
    leader = Leader(MemoryStore(file))
    seen, following = follow_with(LookedAt(file), [])
    await seen.reaches(file.last_seq)
    after = file.last_seq
    leader.submit("a1")
    leader.submit("a2")
    tell(following, told_by(file, after), without=(after + 1,))
    await seen.reaches(file.last_seq)
    await following.end()
    compare(catch_up(following.follower), leader.state)


async def test_what_a_new_leader_tells_counts_only_after_a_look_at_what_went_before() -> None:
    """A failover lost a turn that was followed, and the next leader gives its number to another one."""
    file, told = MemoryFile(), list[str]()
    leader, store = Leader(MemoryStore(file)), LookedAt(file)
    leader.submit("lost")
    seen, following = follow_with(store, told)
    await seen.reaches(file.last_seq)
    lost = file.last_seq
    store.away = True
    following.relinked()
    _cut_log(leader.store, lost)
    other = Leader(MemoryStore(file))
    other.submit("a1")
    tell(following, told_by(file, lost - 1))
    # Nothing of it is taken while nobody can tell what went before.
    store.looked = threading.Semaphore(0)
    for _ in range(2):
        assert await asyncio.to_thread(store.looked.acquire, timeout=30)
    assert (seen.seq, following.follower.heard) == (lost, 0)
    store.away = False
    await seen.reaches(file.last_seq)
    await following.end()
    assert set(catch_up(following.follower).jobs) == {"a1"}
    assert len(told) == 1
