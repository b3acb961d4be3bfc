"""How streams are spelled: each binary WebSocket message is one frame, `stream u32 | kind u8 | payload`.

Owns kinds and what may be opened; how much may be on its way is the multiplexer's. A stream is opened by a JSON
document of a tagged union, so that an end which does not know a kind of target can refuse it with a sentence.
"""

from __future__ import annotations

import struct
from typing import Annotated, TypeVar

import msgspec

from dray.core.model.bounds import IdText, Line, Port
from dray.errors import DrayError, InvalidInput, Unreachable

SUBPROTOCOL_STREAMS = "dray.v2.streams"
# By which a worker says which of the hub's requests a tunnel answers.
TICKET_HEADER = "Dray-Ticket"
TUNNEL_PATH = "/ws/tunnel"
FORWARD_PATH = "/ws/forward"
OPEN, OPENED, REFUSED, DATA, WINDOW, EOF, RESET, RESIZE, SIGNAL, EXIT, KEEP = range(11)
# Those that say something beside the bytes, and mean nothing to the multiplexer.
ASIDE = (RESIZE, SIGNAL, EXIT)
Bytes = bytes | memoryview
HEAD = struct.Struct("!IB")
AMOUNT = struct.Struct("!I")
TOTAL = struct.Struct("!Q")
PIECE_BYTES = 64 << 10
WINDOW_BYTES = 256 << 10
REASON_BYTES = 1024
CLOSED_WORDS = "the connection was closed"


class PortTarget(msgspec.Struct, tag="port", frozen=True, omit_defaults=True):
    """A port that was leased to an attempt; of a hub, to a worker. `keep_for`: bytes follow at once, and a connection
    that was kept for this very word may take them.
    """

    attempt: IdText
    port: Port
    keep_for: Line = ""


class ServiceTarget(msgspec.Struct, tag="service", frozen=True):
    """A port of a ready replica, or of a task that runs; of a client, to its hub. `port`: by name or number."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    port: Line = ""


Words = Annotated[list[str], msgspec.Meta(max_length=10_000)]
Cells = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class ExecTarget(msgspec.Struct, tag="exec", frozen=True):
    """A process beside an attempt; of a hub, to a worker. With `terminal` it has one, of that size."""

    attempt: IdText
    command: Words
    env: dict[str, str] = {}
    terminal: bool = False
    rows: Cells = 24
    columns: Cells = 80


class AttachTarget(msgspec.Struct, tag="attach", frozen=True):
    """The terminal that an attempt runs in; of a hub, to a worker."""

    attempt: IdText
    rows: Cells = 24
    columns: Cells = 80


class TaskTarget(msgspec.Struct, tag="task", frozen=True):
    """A process beside a task that runs, or the terminal of the task itself, where there is no command; of a client, to
    its hub.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    command: Words = []
    env: dict[str, str] = {}
    terminal: bool = False
    rows: Cells = 24
    columns: Cells = 80


Target = PortTarget | ServiceTarget | ExecTarget | AttachTarget | TaskTarget


class Reached(msgspec.Struct, frozen=True):
    """What a client is told when a stream of its own stands: who answers, and which others did not."""

    task: str
    worker: str
    port: int
    notes: list[str] = []


T = TypeVar("T")
_target: msgspec.json.Decoder[Target] = msgspec.json.Decoder(Target)
_reached = msgspec.json.Decoder(Reached)


def write_target(target: Target) -> bytes:
    """Spell what is to be opened."""
    return msgspec.json.encode(target)


def read_target(payload: bytes) -> Target:
    """Read what is to be opened; raises `InvalidInput` for what this version does not know."""
    return _read(_target, payload, "nothing that can be opened here")


def write_reached(reached: Reached) -> bytes:
    """Spell who answers."""
    return msgspec.json.encode(reached)


def read_reached(payload: bytes) -> Reached:
    """Read who answers."""
    return _read(_reached, payload, "no word of who answers")


def write_refusal(fault: DrayError) -> str:
    """Spell why a client's stream is refused: the kind of fault, then its words."""
    return f"{fault.code}\n{fault.message}"


def split_refusal(reason: str) -> tuple[str, str]:
    """The kind of fault behind a refusal, and its words; what has no kind cannot be reached."""
    code, mark, words = reason.partition("\n")
    return (code, words) if mark else (Unreachable.code, reason)


def _read(decoder: msgspec.json.Decoder[T], payload: bytes, what: str) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as fault:
        raise InvalidInput(f"{what}: {fault}") from None
