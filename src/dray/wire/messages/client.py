"""The client channel, version 1: what a client may ask, what the hub answers and pushes, and how both are read.

A frame is one message `{"type", "id", "payload"}` or a list of them, in msgpack. `id` is the client's own number of a
request; its one answer carries the same id. What is pushed (`changed`, `results`, `ended`) carries none. Both sides are
spelled here, so that neither can drift from the other.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dray.core.model.bounds import Few, FewNamed, IdText, Line, Many, Small, Word
from dray.core.model.ids import ID_RULE, is_id, split_task_id
from dray.core.model.specs.spec import MAX_REPLICAS, MAX_TASKS
from dray.errors import InvalidInput, Problem
from dray.wire.messages.packed import check_bytes
from dray.wire.messages.worker import MAX_CALLS, Digest, PackedValue

SUBPROTOCOL_CLIENT = "dray.client.v1.msgpack"
CLIENT_PATH = "/ws/client"
MAX_IDS = 10_000
MAX_ROWS = 1_000
KEY_RULE = "must be 1 to 128 printable ASCII characters"
_KEY = re.compile(r"[\x20-\x7e]{1,128}")
_NOTHING = msgspec.Raw(b"\x80")
_NULL = b"\xc0"
Rows = Annotated[int, Meta(ge=1, le=MAX_ROWS)]
Grace = Annotated[float, Meta(ge=0, le=86400)]
Users = Annotated[list[IdText], Meta(max_length=MAX_ROWS)]
Action = Literal["cancel", "hold", "release", "requeue"]


class Submit(msgspec.Struct, forbid_unknown_fields=True):
    """New jobs, all or none; answered by `ids`, `states` and `created`."""

    specs: Many[msgspec.Raw]
    key: Line = ""


class Watch(msgspec.Struct, forbid_unknown_fields=True):
    """Hear of these jobs until they end; answered by the rows as they stand now."""

    ids: Many[IdText]


class Unwatch(msgspec.Struct, forbid_unknown_fields=True):
    """Hear no more of these jobs."""

    ids: Many[IdText]


class Get(msgspec.Struct, forbid_unknown_fields=True):
    """The documents of these jobs; ids that are not there come back in `missing`."""

    ids: Many[IdText]


class Result(msgspec.Struct, forbid_unknown_fields=True):
    """Documents and values of those jobs that have ended; the others come back in `unfinished` or `missing`."""

    ids: Many[IdText]


class Values(msgspec.Struct, forbid_unknown_fields=True):
    """States and values of the tasks `first` … `first + limit - 1` of one job, in columns."""

    id: IdText
    first: Small = 0
    limit: Rows = MAX_ROWS


class Calls(msgspec.Struct, forbid_unknown_fields=True):
    """Add calls to a job from index `first` on, and hear of their results; with `spec` the job is made where it is new.

    Sent again it changes nothing: calls below the job's total were recorded before. `blobs` names what the function or
    the arguments refer to beyond `args`. `close` says that no further ones come. Answered by `job`, `total`, `state`.
    """

    job: IdText
    first: Annotated[int, Meta(ge=0, le=MAX_TASKS)] = 0
    args: Annotated[list[PackedValue], Meta(max_length=MAX_CALLS)] = []
    spec: msgspec.Raw = msgspec.Raw(b"\xc0")
    blobs: Annotated[list[Digest], Meta(max_length=MAX_CALLS)] = []
    close: bool = False


class Collect(msgspec.Struct, forbid_unknown_fields=True):
    """Those of the calls `first` … `first + limit - 1` that have ended, and hear of the others.

    Answered by `index`, `state`, `value`, `details` as in `results`, `next` (where to go on, null at the end of the
    job's calls) and `job_state`. An answer holds less than `limit` where the values are large: go on from `next`.
    """

    job: IdText
    first: Annotated[int, Meta(ge=0, le=MAX_TASKS)] = 0
    limit: Rows = MAX_ROWS


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """Stop a job, or one task of it. `dry_run` only tells what that would do, here and below."""

    id: IdText
    task: Small | None = None
    grace_s: Grace | None = None
    dry_run: bool = False


class Hold(msgspec.Struct, forbid_unknown_fields=True):
    """Keep a job from starting; what runs goes on."""

    id: IdText
    dry_run: bool = False


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """Let a held job start."""

    id: IdText
    dry_run: bool = False


class Requeue(msgspec.Struct, forbid_unknown_fields=True):
    """Stop what runs of a job, or one task of it, and queue it again."""

    id: IdText
    task: Small | None = None
    dry_run: bool = False


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    """Give a service, by its name or id, another number of replicas."""

    name: Line
    replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]


class Share(msgspec.Struct, forbid_unknown_fields=True):
    """Let users reach a service (`*`: everybody), and others no longer."""

    name: Line
    add: Users = []
    remove: Users = []


class ShowService(msgspec.Struct, forbid_unknown_fields=True):
    """A service, by its name or id, with its revisions and replicas."""

    name: Line


class UpdateService(msgspec.Struct, forbid_unknown_fields=True):
    """Let a service run by another spec: fields to change, null for a default, or with `whole` all there are."""

    name: Line
    changes: Annotated[dict[IdText, Any], Meta(max_length=256)]
    whole: bool = False


class RollbackService(msgspec.Struct, forbid_unknown_fields=True):
    """Go back to an earlier revision of a service: the last that was whole, or `to`."""

    name: Line
    to: Annotated[int, Meta(ge=1, le=10**9)] | None = None


class Endpoints(msgspec.Struct, forbid_unknown_fields=True):
    """Where the ready replicas of a service answer."""

    name: Line


class Act(msgspec.Struct, forbid_unknown_fields=True):
    """Change many jobs at once: those that live and are all of what is given here. `name` may hold `*` and `?`.

    Where nothing is given, `all` has to be. `dry_run` only counts them.
    """

    action: Action
    ids: Annotated[list[IdText], Meta(max_length=MAX_IDS)] = []
    states: Few[Word] = []
    user: IdText = ""
    queue: IdText = ""
    name: IdText = ""
    labels: FewNamed[Line] = {}
    all: bool = False
    dry_run: bool = False
    grace_s: Grace | None = None


class Edit(msgspec.Struct, forbid_unknown_fields=True):
    """Change a job that waits: fields of its spec, null for a default."""

    id: IdText
    changes: Annotated[dict[IdText, Any], Meta(max_length=256)]
    dry_run: bool = False


class Why(msgspec.Struct, forbid_unknown_fields=True):
    """Why a job waits."""

    id: IdText


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """Where a job would run; nothing is written."""

    spec: Any


class Jobs(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs, newest first; filters as in `GET /jobs`."""

    states: Few[Word] = []
    user: IdText = ""
    queue: IdText = ""
    name: IdText = ""
    labels: FewNamed[Line] = {}
    workload: IdText = ""
    limit: Rows = 100
    cursor: Word = ""


class Tasks(msgspec.Struct, forbid_unknown_fields=True):
    """Tasks of a job; filters as in `GET /jobs/{id}/tasks`."""

    id: IdText
    states: Few[Word] = []
    limit: Rows = 100
    cursor: Word = ""


class Ping(msgspec.Struct, forbid_unknown_fields=True):
    """Ask for a sign of life: the hub's version and epoch."""


class Preemptions(msgspec.Struct, forbid_unknown_fields=True):
    """Receipts of preemptions, newest first; filters as in `GET /preemptions`."""

    job: IdText = ""
    user: IdText = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: Word = ""
    window_s: Annotated[float, Meta(ge=1, le=366 * 86400)] = 86400


class Alarms(msgspec.Struct, forbid_unknown_fields=True):
    """What is wrong now."""


class Usage(msgspec.Struct, forbid_unknown_fields=True):
    """What was asked for, held and used within the last `window_s`, summed up by user, queue, plugin, template, name
    or job."""

    by: Literal["user", "queue", "plugin", "template", "name", "job"] = "user"
    window_s: Annotated[float, Meta(gt=0, le=366 * 86400.0)] = 7 * 86400.0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class IdleGpus(msgspec.Struct, forbid_unknown_fields=True):
    """Cards that are held and idle now, longest first."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Notifications(msgspec.Struct, forbid_unknown_fields=True):
    """Who was told of what, newest first; filters as in `GET /notifications`."""

    job: IdText = ""
    states: Annotated[list[Word], Meta(max_length=16)] = []
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Word = ""


class Preemption(msgspec.Struct, forbid_unknown_fields=True):
    """The receipt of one preemption."""

    id: IdText


CLIENT_PAYLOADS: dict[str, type[Any]] = {
    "submit": Submit,
    "watch": Watch,
    "unwatch": Unwatch,
    "get": Get,
    "result": Result,
    "values": Values,
    "calls": Calls,
    "collect": Collect,
    "cancel": Cancel,
    "hold": Hold,
    "release": Release,
    "requeue": Requeue,
    "scale": Scale,
    "share": Share,
    "show_service": ShowService,
    "update_service": UpdateService,
    "rollback_service": RollbackService,
    "endpoints": Endpoints,
    "act": Act,
    "edit": Edit,
    "why": Why,
    "plan": Plan,
    "jobs": Jobs,
    "tasks": Tasks,
    "ping": Ping,
    "preemptions": Preemptions,
    "preemption": Preemption,
    "notifications": Notifications,
    "alarms": Alarms,
    "usage": Usage,
    "idle": IdleGpus,
}
ANSWER, ERROR, CHANGED = "answer", "error", "changed"
# Pushed of a job whose calls this channel added or collected: results as they are recorded, and its end.
RESULTS, ENDED = "results", "ended"
# Pushed to who dialled with `TURN_HEADER`: what to give back there at the next dial.
TURN = "turn"
RequestId = int | Line | None


class Request(msgspec.Struct):
    """One message of a client, its payload not yet read."""

    type: Line
    id: RequestId = None
    payload: msgspec.Raw = _NOTHING


class Reply(msgspec.Struct):
    """One message of the hub: an answer, a refusal of one request, or something pushed."""

    type: Line
    id: RequestId = None
    payload: Any = None
    error: Any = None


class Fault(InvalidInput):
    """A message that cannot be read, and the id it came with where that much could be read."""

    def __init__(self, message: str, request_id: RequestId = None) -> None:
        super().__init__(message)
        self.request_id = request_id


_requests = msgspec.msgpack.Decoder(Request | Many[Request])
_replies = msgspec.msgpack.Decoder(Reply | Many[Reply])
_payloads = {name: msgspec.msgpack.Decoder(kind) for name, kind in CLIENT_PAYLOADS.items()}
_documents: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
# Whose documents are opened with them: how much that can become is bounded by their bytes.
_WHOLE = (_payloads["plan"], _payloads["edit"], _payloads["update_service"])
DOCUMENT_BYTES = 1 << 20
_encode = msgspec.msgpack.Encoder().encode


def read_requests(frame: bytes) -> list[Request]:
    """Split a client's frame into requests without opening their payloads."""
    try:
        decoded = _requests.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as fault:
        raise Fault(f"the frame is no message and no list of messages: {_words(fault)}") from None
    return decoded if isinstance(decoded, list) else [decoded]


def open_request(request: Request) -> Any:
    """Read a request's payload as the struct of its type, and check what its fields must keep to."""
    if request.id is None or (isinstance(request.id, str) and len(request.id) > 64):
        raise Fault(f"{request.type[:64]}: needs an `id`: a number, or text of at most 64 characters")
    decoder = _payloads.get(request.type)
    if decoder is None:
        known = ", ".join(CLIENT_PAYLOADS)
        raise Fault(f"unknown message type {request.type[:64]!r}: a client may send {known}", request.id)
    raw = request.payload
    if decoder in _WHOLE and len(raw) > DOCUMENT_BYTES:
        what = f"takes {len(raw)} bytes, the limit is {DOCUMENT_BYTES}"
        raise Fault(f"{request.type}: {what}", request.id)
    try:
        body = decoder.decode(_NOTHING if bytes(raw) == _NULL else raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as fault:
        raise Fault(f"{request.type}: {_words(fault)}", request.id) from None
    if where := _problem(body):
        raise Fault(f"{request.type}: {where.where} {where.what}", request.id)
    return body


def open_document(raw: msgspec.Raw) -> Any:
    """Read a document that was kept as it came, such as the spec of a job; None where there is none."""
    check_bytes(raw, DOCUMENT_BYTES)
    try:
        return _documents.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as fault:
        raise InvalidInput(f"a spec cannot be read: {_words(fault)}") from None


def read_replies(frame: bytes) -> list[Reply]:
    """Split a hub's frame into replies."""
    try:
        decoded = _replies.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as fault:
        raise Fault(f"the hub's frame cannot be read: {_words(fault)}") from None
    return decoded if isinstance(decoded, list) else [decoded]


def write_message(kind: str, request_id: RequestId, payload: Any = None, error: Any = None) -> bytes:
    """Encode one message of either side; empty parts are left out."""
    envelope: dict[str, Any] = {"type": kind}
    if request_id is not None:
        envelope["id"] = request_id
    if payload is not None:
        envelope["payload"] = payload
    if error is not None:
        envelope["error"] = error
    return _encode(envelope)


def join_messages(messages: list[bytes]) -> bytes:
    """Make one frame of encoded messages: a msgpack list is its head and its members, end to end."""
    count = len(messages)
    if count == 1:
        return messages[0]
    if count < 16:
        head = bytes([0x90 | count])
    elif count < 1 << 16:
        head = b"\xdc" + count.to_bytes(2)
    else:
        head = b"\xdd" + count.to_bytes(4)
    return head + b"".join(messages)


def pack_row(row: Any) -> msgspec.Raw:
    """Encode a part of a message ahead of the message itself."""
    return msgspec.Raw(_encode(row))


def _problem(body: Any) -> Problem | None:
    if isinstance(body, Submit):
        if body.key and _KEY.fullmatch(body.key) is None:
            return Problem("key", KEY_RULE)
        if not body.specs:
            return Problem("specs", "is empty: send at least one job")
    ids = getattr(body, "ids", ())
    most = MAX_ROWS if isinstance(body, (Get, Result)) else MAX_IDS
    if len(ids) > most:
        return Problem("ids", f"holds {len(ids)} ids, the limit is {most}: ask several times")
    if isinstance(body, (Calls, Collect)) and not is_id(body.job):
        return Problem("job", f"{body.job[:160]!r} is no id of a job: it must be {ID_RULE}")
    return _change_problem(body) if isinstance(body, (Cancel, Hold, Release, Requeue, Edit)) else None


def _change_problem(body: Cancel | Hold | Release | Requeue | Edit) -> Problem | None:
    if split_task_id(body.id) is None:
        return Problem("id", f"{body.id[:160]!r} is no id of a job")
    return None


def _words(fault: Exception) -> str:
    return "nested too deep" if isinstance(fault, RecursionError) else str(fault)
