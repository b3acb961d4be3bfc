"""A gateway without sockets: what it keeps, what it tells of heartbeats, and whom it heeds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.core.model.capability import Slots
from dray.errors import Unauthenticated
from dray.hub.gateways.frames import (
    Beat,
    BeatAck,
    Close,
    Closed,
    Done,
    Down,
    Held,
    Hello,
    Items,
    Registered,
    Told,
    TurnTold,
    Welcome,
    read_down,
    read_up,
    write_frame,
)
from dray.hub.gateways.gateway import Gateway
from dray.hub.gateways.hub_tokens import HubTokens, hub_of, make_hub_token
from dray.hub.gateways.kept import MOST_PRINTED_BYTES, Kept
from dray.hub.gateways.leading import MOST_TURNS_BYTES, TURN_BYTES, Gateways
from dray.hub.gateways.peers import Peer, Read
from dray.hub.store.base import Turn
from dray.hub.workers.session import Limits
from dray.testing.worker_script import MODERN, WorkerScript
from dray.wire.messages.worker import worker_codec

LIMITS = Limits(1 << 20, 8 << 20, 100, 1 << 20)


class Socket:
    """Takes frames at once, and keeps them."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write_frame(self, frame: bytes) -> bool:
        self.frames.append(frame)
        return True

    def take_frames(self, take: Any) -> None: ...
    def abort_in(self, delay_s: float) -> None: ...


class Leader:
    """The other end of a link: hears what is said, and may be cut."""

    writable = True

    def __init__(self, gateway: Gateway) -> None:
        self.heard: list[Any] = []
        self.cut = False
        self._gateway = gateway
        gateway.linked(self)

    def send(self, frame: bytes) -> None:
        self.heard.append(read_up(frame))

    def abort(self) -> None:
        self.cut = True

    def say(self, frame: Down) -> None:
        self._gateway.take(write_frame(frame))

    def of(self, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.heard if isinstance(frame, kind)]


async def nothing(event: object) -> None: ...


class World:
    """A gateway with one worker that is connected and has registered."""

    def __init__(self) -> None:
        self.gateway, self.socket = Gateway("g1", (), LIMITS), Socket()
        self.script = WorkerScript("w1", features=MODERN, msgpack=True)
        self.peer = self.gateway.peers[1] = Peer(1, "t1", worker_codec(True), nothing, self.socket, LIMITS)
        self.leader = Leader(self.gateway)
        self.leader.say(Welcome(7, 100, 0, "http://one"))
        self.says("register", self.script.register(incarnation="i1"))
        self.leader.say(Registered(7, 1, "w1", "i1", 42))

    def says(self, kind: str, payload: dict[str, Any]) -> None:
        """The worker says something, and the loop comes to its end."""
        frame = self.script.encode(kind, payload)
        assert isinstance(frame, bytes)
        self.gateway._pass_on(self.peer, frame)
        self.gateway.flush()

    def beats(self, number: int, **fields: Any) -> None:
        self.says("heartbeat", self.script.heartbeat(beat=number, active=[], **fields))

    @property
    def told(self) -> list[dict[str, Any]]:
        """What the worker was told."""
        return [message.payload for frame in self.socket.frames for message in self.script.decode(frame)]


@pytest.fixture
async def world() -> World:
    return World()


def numbers(frames: list[Items]) -> list[int]:
    return [frame.first + place for frame in frames for place in range(len(frame.items))]


async def test_items_stay_until_they_are_done_and_go_to_the_next_leader_in_their_order(world: World) -> None:
    for step in range(3):
        world.says("job_progress", {"task_id": "a", "step": step})
    assert numbers(world.leader.of(Items)) == [1, 2, 3, 4]
    world.leader.say(Done(7, 105, 2))
    sent = [item for frame in world.leader.of(Items) for item in frame.items]
    world.gateway.unlinked(world.leader)
    world.says("job_progress", {"task_id": "a", "step": 3})
    other = Leader(world.gateway)
    assert other.of(Items) == [], "nobody has welcomed it yet"
    other.say(Welcome(8, 110, 0, "http://two"))
    assert numbers(other.of(Items)) == [3, 4, 5]
    assert [item for frame in other.of(Items) for item in frame.items][:2] == sent[2:]
    (hello,) = other.of(Hello)
    assert (hello.max_epoch, hello.done_seq) == (7, 105)
    assert [(held.worker, held.incarnation, held.registered_at_ms) for held in hello.sessions] == [
        ("w1", "i1", 42)
    ]


async def test_what_the_leader_is_told_of_a_session_is_what_it_last_said(world: World) -> None:
    world.leader.say(Told(7, 101, [(1, b"x", 3)]))
    slots = {"batch_total": 5, "batch_in_use": 1, "service_total": 0, "service_in_use": 0}
    world.says("ready_for_work", {"worker_id": "w1", "slots": slots, "credits": 9})
    held = world.peer.held()
    assert (held.credit, held.slots, held.features) == (3, Slots(5, 1, 0, 0), MODERN)


async def test_a_registration_that_is_not_on_record_is_none(world: World) -> None:
    peer = Peer(2, "t2", worker_codec(True), nothing, Socket(), LIMITS)
    frame = world.script.encode("register", world.script.register())
    peer.read(frame)
    assert peer.held() == Held(2, "t2", True)


async def test_heartbeats_that_say_nothing_new_go_in_digests_and_are_acked_with_them(world: World) -> None:
    world.beats(1)
    assert len(numbers(world.leader.of(Items))) == 2, "the first is passed on whole"
    world.beats(2)
    world.beats(3)
    world.gateway._beat()
    assert [frame.sessions for frame in world.leader.of(Beat)] == [[1]]
    assert world.told == [], "nobody has heard them yet"
    world.leader.say(BeatAck(7, 104, world.leader.of(Beat)[0].d))
    assert world.told == [{"re": "heartbeat", "epoch": 7, "turn": 104, "leader": "http://one", "beat": 3}]


@pytest.mark.parametrize(
    "said",
    [
        {"slots": {"batch_total": 9, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}},
        {"active": ["1-1"]},
        {"usage": {"attempts": {"1-1": {"cpu_s": 1.0}}}},
        {"devices": []},
    ],
)
async def test_a_heartbeat_that_says_something_is_passed_on_whole(world: World, said: dict[str, Any]) -> None:
    world.beats(1)
    before = len(numbers(world.leader.of(Items)))
    world.says("heartbeat", {**world.script.heartbeat(beat=2, active=[]), **said})
    assert len(numbers(world.leader.of(Items))) == before + 1


async def test_heartbeats_that_were_not_acked_are_told_to_the_next_leader(world: World) -> None:
    world.beats(1)
    world.beats(2)
    world.gateway._beat()
    world.gateway.unlinked(world.leader)
    assert world.told == []
    other = Leader(world.gateway)
    other.say(Welcome(8, 110, 0, "http://two"))
    world.gateway._beat()
    (digest,) = other.of(Beat)
    other.say(BeatAck(8, 111, digest.d))
    assert [(ack["beat"], ack["epoch"]) for ack in world.told] == [(2, 8)]
    before = len(numbers(other.of(Items)))
    world.beats(3)
    assert len(numbers(other.of(Items))) == before + 1, "the first of a link is whole"


async def test_a_session_that_is_strange_to_the_leader_gets_no_ack(world: World) -> None:
    world.beats(1)
    world.beats(2)
    world.gateway._beat()
    world.leader.say(BeatAck(7, 104, world.leader.of(Beat)[0].d, [1]))
    assert world.told == []


@pytest.mark.parametrize(
    "frame", [Told(6, 1, [(1, b"x", 0)]), Close(6, 1, 1000, ""), Done(6, 1, 99), BeatAck(6, 1, 1)]
)
async def test_a_leader_of_a_lower_epoch_is_not_heeded(world: World, frame: Down) -> None:
    world.beats(1)
    world.beats(2)
    world.gateway._beat()
    kept = len(world.gateway.kept)
    world.leader.say(frame)
    assert (world.socket.frames, world.peer.closing, len(world.gateway.kept)) == ([], None, kept)
    assert world.leader.cut


class Follows:
    """Who follows: what it was told."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.links = 0

    def relinked(self) -> None:
        self.links += 1

    def take(self, turn: TurnTold) -> None:
        self.turns.append(turn.seq)


async def test_turns_go_to_who_follows_and_not_those_of_a_lower_epoch(world: World) -> None:
    follows = world.gateway.follows = Follows()
    assert not world.leader.of(Hello)[-1].follows
    world.gateway.unlinked(world.leader)
    leader = Leader(world.gateway)
    assert leader.of(Hello)[-1].follows
    leader.say(Welcome(8, 101, 0))
    leader.say(TurnTold(8, 102, 0, 0, b""))
    leader.say(TurnTold(7, 103, 0, 0, b""))
    assert (follows.turns, follows.links, leader.cut) == ([102], 2, True)


class Out:
    """The way to a gateway, which may have read all or not."""

    waiting_bytes = 0

    def __init__(self) -> None:
        self.turns: list[TurnTold] = []

    def send(self, frame: bytes) -> None:
        told = read_down(frame)
        assert isinstance(told, TurnTold)
        self.turns.append(told)

    def close(self, code: int, reason: str) -> None:
        raise AssertionError(reason)


async def test_a_gateway_that_does_not_read_is_left_out_of_turns_and_keeps_its_link() -> None:
    nobody: Any = None
    gateways = Gateways(nobody, nobody, nobody, nobody, "http://one", lambda: 7, nobody)
    outs = [Out() for _ in range(3)]
    links = [gateways.open(out) for out in outs]
    links[0]._follows = links[1]._follows = True
    outs[1].waiting_bytes = MOST_TURNS_BYTES + 1
    gateways.tell_turn(Turn(5, 1, 2, b"facts", b""))
    outs[1].waiting_bytes = 0
    gateways.tell_turn(Turn(6, 1, 2, b"x" * (TURN_BYTES + 1), b""))
    assert outs[0].turns == [TurnTold(7, 5, 1, 2, b"facts"), TurnTold(7, 6, 1, 2, None)]
    assert [turn.seq for turn in outs[1].turns] == [6]
    assert not outs[2].turns, "one of an earlier version would not know what that is"
    assert not any(link.over for link in links)


async def test_a_store_that_went_back_makes_workers_register(world: World) -> None:
    world.leader.say(Done(7, 105, 1))
    world.gateway.unlinked(world.leader)
    Leader(world.gateway).say(Welcome(8, 104, 0, "http://two"))
    assert world.peer.closing is not None
    assert world.peer.closing[0] == 1012


async def test_the_next_leader_hears_of_the_last_turn_that_anybody_here_was_told_of(world: World) -> None:
    world.leader.say(Done(7, 105, 1))
    world.leader.say(Told(7, 109, []))
    world.leader.say(BeatAck(7, 107, 1))
    world.gateway.unlinked(world.leader)
    assert Leader(world.gateway).of(Hello)[-1].done_seq == 109


class Slow:
    """A worker that reads when it is let."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.reads = asyncio.Event()

    async def send(self, event: Any) -> None:
        await self.reads.wait()
        self.got.append(event.get("text") or event.get("code"))


async def test_a_turn_may_have_more_for_a_worker_than_may_wait_behind_it() -> None:
    slow = Slow()
    peer = Peer(1, "t1", worker_codec(False), slow.send, None, LIMITS)
    pump = asyncio.create_task(peer.pump())
    turn = [f"a{number}" for number in range(10 * LIMITS.queue_messages)]
    for frame in turn:
        peer.push(frame, 0)
    await asyncio.sleep(0)
    behind = [f"b{number}" for number in range(LIMITS.queue_messages)]
    for frame in behind:
        peer.push(frame, 0)
    assert peer.closing is None
    peer.push("one more than may wait", 0)
    assert peer.closing is not None
    slow.reads.set()
    await pump
    assert slow.got == [*turn, *behind, 1013]


def test_text_of_one_that_speaks_msgpack_is_the_leaders_to_refuse() -> None:
    peer = Peer(1, "t1", worker_codec(True), nothing, None, LIMITS)
    assert peer.read('{"type": "heartbeat"}') == Read(None, prints=False)


async def test_an_end_is_told_after_all_that_was_said_before_it() -> None:
    kept = Kept()
    kept.add(1, b"a", prints=False)
    kept.close(1, 1000)
    kept.add(2, b"b", prints=False)
    assert [kept.take() for _ in range(4)] == [
        Items(1, [(1, b"a")]),
        Closed(1, 1000),
        Items(3, [(2, b"b")]),
        None,
    ]
    kept.rewind([2])
    assert (kept.take(), kept.take()) == (Items(3, [(2, b"b")]), None)
    kept.done(3)
    assert len(kept) == 0


async def test_a_frame_stands_for_no_number_that_it_does_not_hold() -> None:
    kept = Kept()
    for session, said in ((1, b"a"), (2, b"b"), (1, b"c"), (1, b"d")):
        kept.add(session, said, prints=False)
    kept.rewind([1])
    assert [kept.take() for _ in range(3)] == [Items(1, [(1, b"a")]), Items(3, [(1, b"c"), (1, b"d")]), None]
    kept.done(1)
    assert len(kept) == 2
    kept.done(4)
    assert len(kept) == 0


async def test_only_those_who_print_wait_for_output_that_is_not_filed() -> None:
    kept = Kept()
    kept.add(1, bytes(MOST_PRINTED_BYTES + 1), prints=True)
    assert (kept.is_full(prints=True), kept.is_full(prints=False)) == (True, False)
    kept.take()
    kept.done(1)
    assert not kept.is_full(prints=True)


def test_a_hub_is_known_by_the_secret_to_one_leader_alone() -> None:
    tokens = HubTokens(b"s" * 32, "one.vm.1.aa")
    assert hub_of(tokens.authenticate(make_hub_token(b"s" * 32, "g1", "one.vm.1.aa"))) == "g1"
    good = make_hub_token(b"s" * 32, "g1", "one.vm.1.aa")
    for bad in (
        make_hub_token(b"x" * 32, "g1", "one.vm.1.aa"),
        make_hub_token(b"s" * 32, "g1", "two.vm.2.bb"),
        good.replace("g1", "g2"),
        good + "0",
        "dray_hub_",
    ):
        with pytest.raises(Unauthenticated):
            tokens.authenticate(bad)
