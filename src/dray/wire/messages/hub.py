"""What a hub may send to a worker, as structs, for agents that read it.

The same rules as on the other side: unknown fields are ignored, an unknown type is an error that names it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dray.core.model.bounds import (
    Epoch,
    Few,
    FewNamed,
    IdText,
    Line,
    Many,
    ManyNamed,
    Nanoseconds,
    Offset,
    Port,
    Seconds,
    Small,
    Some,
    Step,
    TurnNumber,
    Word,
)
from dray.core.model.ids import ID_PATTERN
from dray.core.model.specs.spec import JobSpec
from dray.wire.messages.codec import Codec
from dray.wire.messages.worker import CallIndex, CallNumber, PackedValue

# An agent calls folders by it: what could be read as a path is no name, whoever sends it.
Name = Annotated[str, msgspec.Meta(pattern=f"^{ID_PATTERN}$", max_length=128)]


class AttemptRef(msgspec.Struct):
    """Which attempt an assignment is: its number, its uid, its fence."""

    no: Small
    uid: Name
    fence: Offset = 0


class Ack(msgspec.Struct):
    """Answers what was sent; `results` and `log_offsets` say what may be forgotten, `beat` which heartbeat is meant.

    `leader`: the hub that leads is not the one that this worker is connected to, but at this address.
    """

    re: Word = ""
    session: IdText = ""
    epoch: Epoch = 0
    turn: TurnNumber = 0
    heartbeat_s: Seconds = 0
    keep: Many[IdText] = []
    stop: Many[IdText] = []
    results: ManyNamed[Word] = {}
    notes: Few[Line] = []
    log_offsets: ManyNamed[FewNamed[Offset]] = {}
    beat: Offset = 0
    leader: Line = ""


class GangPlace(msgspec.Struct):
    """Which try of a gang an assignment belongs to, and which of its members it is."""

    generation: Small
    rank: Small
    size: Small


class JobAssign(msgspec.Struct):
    """A task to run; `spec.id` is the task id. `behind`: once this attempt has ended, if that is within `behind_s`.
    `token`: by which it reaches the services that its spec names in `uses`.
    """

    spec: JobSpec
    remaining_time: Nanoseconds
    attempt: AttemptRef
    devices: Some[Small] = []
    lease_s: Seconds = 0
    gang: GangPlace | None = None
    behind: Line = ""
    behind_s: Seconds = 0
    token: Line = ""


class Peer(msgspec.Struct):
    """Where one member of a gang can be met."""

    rank: Small
    address: Line = ""
    ports: Some[Port] = []


class JobGo(msgspec.Struct):
    """Every member of a gang is prepared: start."""

    task_id: IdText
    generation: Small
    attempt: IdText
    peers: Some[Peer]


class CallsAssign(msgspec.Struct):
    """Calls for one lane, in columns: run them one at a time, in this order.

    `spec` comes with the first ones of a lane in a session and holds for the rest. `args` holds packed arguments, or
    the digest and the size of the blob that has them. `remaining_time` is the budget of each call in nanoseconds.
    """

    lane: Name
    job: Name
    attempt: AttemptRef
    index: Some[CallIndex]
    no: Some[CallNumber]
    args: Some[PackedValue]
    remaining_time: Nanoseconds
    spec: JobSpec | None = None
    devices: Some[Small] = []
    token: Line = ""


class CallsAck(msgspec.Struct):
    """These results are recorded, or no longer wanted: they may be forgotten."""

    seq: Many[Step]


class JobResume(msgspec.Struct):
    """A task that gave its slot up has it back."""

    task_id: IdText
    attempt: IdText


class TunnelDial(msgspec.Struct):
    """Somebody wants to reach a task here: open a tunnel, to `leader` where that is not the hub of this session, and
    name this ticket.
    """

    ticket: IdText
    leader: Line = ""


class NoWork(msgspec.Struct):
    """Nothing for you now."""

    retry_after_s: Seconds | None = None


class JobCancel(msgspec.Struct):
    """Stop a task: TERM, then KILL after the grace."""

    task_id: IdText
    attempt: IdText = ""
    reason: Word = "user"
    grace_s: Seconds | None = None


class PrewarmHint(msgspec.Struct):
    """What a task may soon need: a snapshot, an environment for a user's account. `over`: it will not, after all."""

    task_id: IdText
    snapshot_id: Line = ""
    snapshot_sha: Line = ""
    environment: Line = ""
    user: Line = ""
    over: bool = False


class ErrorReply(msgspec.Struct):
    """Something this agent sent made no sense to the hub; the envelope says what."""


HUB_PAYLOADS: dict[str, type[Any]] = {
    "ack": Ack,
    "job_assign": JobAssign,
    "job_go": JobGo,
    "calls_assign": CallsAssign,
    "calls_ack": CallsAck,
    "job_resume": JobResume,
    "tunnel_dial": TunnelDial,
    "no_work": NoWork,
    "job_cancel": JobCancel,
    "prewarm_hint": PrewarmHint,
    "error": ErrorReply,
}


def hub_codec(binary: bool) -> Codec:
    """The codec by which an agent reads its hub."""
    return Codec(HUB_PAYLOADS, binary)
