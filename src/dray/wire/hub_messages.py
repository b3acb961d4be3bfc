"""What a hub may send to a worker, as structs, for agents that read it.

The same rules as on the other side: unknown fields are ignored, an unknown type is an error that names it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.core.model.spec import JobSpec
from dray.wire.codec import Codec


class AttemptRef(msgspec.Struct):
    """Which attempt an assignment is: its number, its uid, its fence."""

    no: int
    uid: str
    fence: int = 0


class Ack(msgspec.Struct):
    """Answers what was sent; `results` and `log_offsets` say what may be forgotten."""

    re: str = ""
    session: str = ""
    epoch: int = 0
    heartbeat_s: float = 0
    keep: list[str] = []
    stop: list[str] = []
    results: dict[str, str] = {}
    log_offsets: dict[str, dict[str, int]] = {}


class GangPlace(msgspec.Struct):
    """Which try of a gang an assignment belongs to, and which of its members it is."""

    generation: int
    rank: int
    size: int


class JobAssign(msgspec.Struct):
    """A task to run; `spec.id` is the task id."""

    spec: JobSpec
    remaining_time: int
    attempt: AttemptRef
    devices: list[int] = []
    lease_s: float = 0
    gang: GangPlace | None = None


class Peer(msgspec.Struct):
    """Where one member of a gang can be met."""

    rank: int
    address: str = ""
    ports: list[int] = []


class JobGo(msgspec.Struct):
    """Every member of a gang is prepared: start."""

    task_id: str
    generation: int
    attempt: str
    peers: list[Peer]


class CallsAssign(msgspec.Struct):
    """Calls for one lane, in columns: run them one at a time, in this order.

    `spec` comes with the first ones of a lane in a session and holds for the rest. `args` holds packed arguments, or
    the digest and the size of the blob that has them. `remaining_time` is the budget of each call in nanoseconds.
    """

    lane: str
    job: str
    attempt: AttemptRef
    index: list[int]
    no: list[int]
    args: list[bytes | tuple[str, int]]
    remaining_time: int
    spec: JobSpec | None = None
    devices: list[int] = []
    token: str = ""


class CallsAck(msgspec.Struct):
    """These results are recorded, or no longer wanted: they may be forgotten."""

    seq: list[int]


class JobResume(msgspec.Struct):
    """A task that gave its slot up has it back."""

    task_id: str
    attempt: str


class NoWork(msgspec.Struct):
    """Nothing for you now."""

    retry_after_s: float | None = None


class JobCancel(msgspec.Struct):
    """Stop a task: TERM, then KILL after the grace."""

    task_id: str
    attempt: str = ""
    reason: str = "user"
    grace_s: float | None = None


class PrewarmHint(msgspec.Struct):
    """A snapshot that a task may soon need."""

    task_id: str
    snapshot_id: str
    snapshot_sha: str = ""


class ErrorReply(msgspec.Struct):
    """Something this agent sent made no sense to the hub; the envelope says what."""


HUB_PAYLOADS: dict[str, type[Any]] = {
    "ack": Ack,
    "job_assign": JobAssign,
    "job_go": JobGo,
    "calls_assign": CallsAssign,
    "calls_ack": CallsAck,
    "job_resume": JobResume,
    "no_work": NoWork,
    "job_cancel": JobCancel,
    "prewarm_hint": PrewarmHint,
    "error": ErrorReply,
}


def hub_codec(binary: bool) -> Codec:
    """The codec by which an agent reads its hub."""
    return Codec(HUB_PAYLOADS, binary)
