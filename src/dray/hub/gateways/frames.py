"""What a gateway and the leader say to each other: lists, the kind first, in msgpack. Only ever appended to.

The pace of the socket makes the batches. Everything that the leader says carries its epoch, and the last turn that it
may speak of: a gateway drops what is of a lower epoch than it has seen.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.core.model.capability import Slots
from dray.wire.messages.worker import TaskAccount

PATH = "/ws/gateway"
SUBPROTOCOL = "dray.gateway.v1.msgpack"
# A frame of a worker as it came, bytes or (JSON) text. No decoder of msgspec tells them apart.
Frame = Any


class Held(msgspec.Struct, frozen=True, array_like=True):
    """One socket that a gateway holds. `worker` is empty unless the leader has acked its registration."""

    no: int
    token_id: str
    binary: bool
    worker: str = ""
    incarnation: str = ""
    registered_at_ms: int = 0
    credit: int = 0
    slots: Slots = Slots()
    features: tuple[str, ...] = ()
    boot_id: str = ""
    accounts: tuple[TaskAccount, ...] = ()


# --- up ---------------------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First of all: who it is, how far it has heard others lead, and every socket that it holds.

    `done_seq` is the last turn that it or its workers were told of. `follows`: it wants to be told of turns; one of an
    earlier version would not know what that is.
    """

    gateway: str
    boot: str
    max_epoch: int
    done_seq: int
    sessions: tuple[Held, ...]
    follows: bool = False


class Items(msgspec.Struct, frozen=True, array_like=True, tag="items"):
    """What workers said, numbered from `first` on; kept by the gateway until it is done."""

    first: int
    items: list[tuple[int, Frame]]


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Whose heartbeats came since the last digest that had nothing new to say."""

    d: int
    sessions: list[int]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Somebody stands before the gateway's door; `caller` is his Authorization header. `request` says of a worker which
    `session` it is to be and whether it is `binary`; of a client that its `caller` is to be known; of both the `peer`.
    """

    id: int
    caller: str
    request: dict[str, Any]
    key: str = ""


class Closed(msgspec.Struct, frozen=True, array_like=True, tag="closed"):
    """A socket has ended."""

    session: int
    code: int


class OutputFiled(msgspec.Struct, frozen=True, array_like=True, tag="filed"):
    """The gateway has filed output of these attempts by itself; whoever reads it looks again."""

    names: list[str]


Up = Hello | Items | Beat | Ask | Closed | OutputFiled


# --- down -------------------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The sockets that were named go on, but for those that are closed; `seq` is the leader's last turn. `knows`: it
    tells who clients are; one of an earlier version would not know what is asked.
    """

    epoch: int
    seq: int
    now_ms: int
    url: str = ""
    knows: bool = False


class Told(msgspec.Struct, frozen=True, array_like=True, tag="items"):
    """What workers are told: the session, a frame, and what is left of its credit then."""

    epoch: int
    seq: int
    items: list[tuple[int, Frame, int]]


class Registered(msgspec.Struct, frozen=True, array_like=True, tag="registered"):
    """A registration is on record; the ack of it follows."""

    epoch: int
    session: int
    worker: str
    incarnation: str
    registered_at_ms: int


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """A socket is to be closed. `at_once`: nothing that waits for it leaves any more."""

    epoch: int
    session: int
    code: int
    reason: str
    at_once: bool = False


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """All that workers said up to this number is committed, and what they printed is filed."""

    epoch: int
    seq: int
    upto: int


class BeatAck(msgspec.Struct, frozen=True, array_like=True, tag="beat_ack"):
    """The leader has heard a digest, but for sessions that are `strange` to it."""

    epoch: int
    seq: int
    d: int
    strange: list[int] = []


class CallerEnded(msgspec.Struct, frozen=True, array_like=True, tag="caller_ended"):
    """The token of a caller that was told of as held is no longer good."""

    epoch: int
    token_id: str


class TurnTold(msgspec.Struct, frozen=True, array_like=True, tag="turn"):
    """A turn that is committed, for one who follows. Without facts where they are too large to go by this way: the
    store has them.
    """

    epoch: int
    seq: int
    now_ms: int
    at_ms: int
    facts: bytes | None


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """What an `ask` came to: {"token"} of a worker, {"caller"} of a client, or {"error"} as the HTTP API spells one.

    {"held"}: the gateway will hear when this caller's token has ended, and need not ask again before.
    """

    id: int
    seq: int
    payload: dict[str, Any]


Down = Welcome | Told | Registered | Close | Done | BeatAck | TurnTold | CallerEnded | Answer

_encoder = msgspec.msgpack.Encoder()
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


def write_frame(frame: Up | Down) -> bytes:
    """A frame as bytes."""
    return _encoder.encode(frame)


def read_up(raw: bytes) -> Up:
    """What a gateway says."""
    return _up.decode(raw)


def read_down(raw: bytes) -> Down:
    """What the leader says."""
    return _down.decode(raw)
