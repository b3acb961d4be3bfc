"""What can happen. Facts are committed before anything they cause leaves the hub; signals live in memory only.

Facts are stored as arrays under a numeric tag: fields are only ever appended, each with a default, and a tag is
never used for anything else.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dray.core.lifecycle.state.pass_events import PassSignal
from dray.core.lifecycle.state.service_events import LaunchFact, LaunchSignal, Move, ServiceFact
from dray.core.lifecycle.state.workload_events import WorkloadFact
from dray.core.lifecycle.waiting.facts import WaitsCharged
from dray.core.model.capability import Capability, Device, Slots
from dray.core.model.records.worker import ResumedSession, Use


class Clock(NamedTuple):
    """When something happened: hub time for every decision, wall time for people."""

    now_ms: int
    at_ms: int


class NewJob(msgspec.Struct, frozen=True, array_like=True):
    """One job of a submit, its id drawn and its spec complete.

    `after` names those conditions of the spec that are still open; `broken` says which one can never be met.
    """

    id: str
    user: str
    spec: bytes
    after: tuple[str, ...] = ()
    broken: str = ""


class Placement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One task given to one worker by a plan; `behind`: to take the place of this attempt when that has ended."""

    job_id: str
    index: int
    uid: str
    worker: str
    devices: tuple[int, ...] = ()
    variant: int = 0
    behind: str = ""


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """How an attempt ended, in the worker's words. `uid` is empty where a base-only peer named none."""

    job_id: str
    index: int
    uid: str
    state: str
    exit_code: int | None = None
    signal: int = 0
    exit_class: str = ""
    error: str = ""
    wall_s: float = 0
    cpu_s: float = 0
    max_rss_bytes: int = 0
    value: bytes = b""
    digest: str = ""
    last: str = ""
    gpu_s: float = 0
    gpu_seen_s: float = 0
    max_gpu_bytes: int = 0


class Activity(msgspec.Struct, frozen=True, array_like=True):
    """One task that a registering worker says it runs. `over`: the store knows this attempt as ended."""

    job_id: str
    index: int
    uid: str = ""
    over: bool = False
    running: bool = True


class JobsSubmitted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    jobs: tuple[NewJob, ...]


class Preemption(msgspec.Struct, frozen=True, array_like=True):
    """Attempts to be stopped so that one task (or gang) can start on these workers with these cards.

    `moves` says of which of the victims it is known where they start again.
    """

    job_id: str
    index: int
    rule: str
    kind: str
    workers: tuple[str, ...]
    devices: tuple[tuple[int, ...], ...]
    variant: int
    victims: tuple[str, ...]
    moves: tuple[Move, ...] = ()


class PlanDecided(msgspec.Struct, frozen=True, array_like=True, tag=2):
    placements: tuple[Placement, ...]
    preemptions: tuple[Preemption, ...] = ()


class WorkerRegistered(msgspec.Struct, frozen=True, array_like=True, tag=3):
    worker: str
    session: int
    capability: Capability
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = {}
    slots: Slots | None = None
    features: tuple[str, ...] = ()
    base: bool = True
    address: str = ""
    incarnation: str = ""
    journal_id: str = ""
    boot_id: str = ""
    active: tuple[Activity, ...] = ()
    finished: tuple[Outcome, ...] = ()
    again: bool = False
    resources: dict[str, int] = {}
    owner: str = ""
    ports: int = -1
    ends_at_ms: int = 0
    version: str = ""


class WorkerChanged(msgspec.Struct, frozen=True, array_like=True, tag=4):
    worker: str
    capability: Capability
    devices: tuple[Device, ...] = ()


class AttemptAccepted(msgspec.Struct, frozen=True, array_like=True, tag=5):
    worker: str
    job_id: str
    index: int
    uid: str = ""
    address: str = ""
    ports: tuple[int, ...] = ()


class AttemptStarted(msgspec.Struct, frozen=True, array_like=True, tag=6):
    worker: str
    job_id: str
    index: int
    uid: str = ""
    pid: int = 0


class AttemptEnded(msgspec.Struct, frozen=True, array_like=True, tag=7):
    worker: str
    outcome: Outcome


class CancelRequested(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """`index` -1 means every task of the job. `grace_s` below 0 means the tier's own. `policy`: why, where the policy
    wants it and not a person.
    """

    job_id: str
    index: int = -1
    user: str = ""
    grace_s: float = -1
    policy: str = ""


class WorkerSilent(msgspec.Struct, frozen=True, array_like=True, tag=9):
    worker: str


class WorkerReturned(msgspec.Struct, frozen=True, array_like=True, tag=10):
    worker: str


class AttemptsLost(msgspec.Struct, frozen=True, array_like=True, tag=11):
    worker: str
    uids: tuple[str, ...]
    reason: str = ""


class AttemptRevoked(msgspec.Struct, frozen=True, array_like=True, tag=12):
    uid: str
    reason: str = ""


class WaitTimedOut(msgspec.Struct, frozen=True, array_like=True, tag=13):
    job_id: str
    reason: str = ""


class WorkerDrained(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """`until_ms` is a wall time, 0: until it is resumed.

    `faults`: how often in a row the hub has found it faulty. With it `on` is a quarantine, and its end a trial. `move`:
    what runs there is moved elsewhere, as there is room.
    """

    worker: str
    on: bool
    user: str = ""
    reason: str = ""
    until_ms: int = 0
    faults: int = 0
    move: bool = False


class WorkerLabelled(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """`given` are all labels that people gave it."""

    worker: str
    given: dict[str, str]
    user: str = ""


class WorkerLeft(msgspec.Struct, frozen=True, array_like=True, tag=15):
    worker: str


class LimitPassed(msgspec.Struct, frozen=True, array_like=True, tag=16):
    uid: str


class EpochStarted(msgspec.Struct, frozen=True, array_like=True, tag=17):
    epoch: int


class WorkerForgotten(msgspec.Struct, frozen=True, array_like=True, tag=18):
    worker: str


class ArrayExtended(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """An open array took `count` further members, or was closed."""

    job_id: str
    count: int
    close: bool = False


class PolicyChanged(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The site's policy was replaced whole. `origin` says where it came from, `digest` names the file's content."""

    policy: bytes
    origin: str = ""
    user: str = ""
    digest: str = ""


class TemplateAdded(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """A template has one more version; `forgets` is one that was removed and whose history makes room for it."""

    name: str
    digest: str
    document: bytes
    user: str = ""
    forgets: str = ""


class TemplateRemoved(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """A template is no longer there; its history is."""

    name: str
    user: str = ""


class AttemptSaved(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """A task saved its work up to `step`, `age_ms` before its worker could say so."""

    worker: str
    job_id: str
    index: int
    uid: str
    step: int
    age_ms: int = 0


class HoldChanged(msgspec.Struct, frozen=True, array_like=True, tag=21):
    job_id: str
    on: bool
    user: str = ""


class JobEdited(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A job's spec was replaced while it waited. `after` names those of its conditions that are still open."""

    job_id: str
    spec: bytes
    user: str = ""
    after: tuple[str, ...] = ()


class RequeueRequested(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """`index` -1 means every task that runs."""

    job_id: str
    index: int = -1
    user: str = ""


class Feed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Calls given into one lane: `ranges` is flat, first and count of each run of indices in turn."""

    uid: str
    ranges: tuple[int, ...]


class CallsFed(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Waiting calls were given into lanes that are there already."""

    feeds: tuple[Feed, ...]


class CallsEnded(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Calls of one lane ended, each one outstanding there when this was decided (see `lanes.outstanding`).

    `state` is one word for all where they are alike: succeeded, failed, killed, returned (never begun) or lost.
    `wall_us` is their run time summed up. `details` gives exit class and error by index where there is any.
    `gone`: calls that were cancelled before, whose end is confirmed now.
    """

    worker: str
    uid: str
    index: tuple[int, ...]
    state: tuple[str, ...] | str = "succeeded"
    wall_us: int = 0
    details: dict[int, tuple[str, str]] = {}
    gone: tuple[int, ...] = ()


class LanesClosed(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """Lanes without calls gave their places back."""

    uids: tuple[str, ...]


class AttemptYielded(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """An attempt waits for others and gives its slot and cores up meanwhile."""

    worker: str
    uid: str


class AttemptResumed(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """An attempt that had yielded got a slot and its cores back."""

    uid: str


class AlarmChanged(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """A rule of the policy found something wrong (`raised`), or found it mended. `key` names rule and subject."""

    key: str
    kind: str
    subject: str
    text: str
    raised: bool
    job_id: str = ""


class IdleReached(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """An attempt has left its cards idle for as long as the policy's `step` says; no step: it uses them again."""

    uid: str
    step: str = ""
    idle_s: float = 0
    limit_s: float = 0


class DeadlineLost(msgspec.Struct, frozen=True, array_like=True, tag=38):
    """Some of what waits of a job can no longer meet its deadline."""

    job_id: str


Fact = (
    JobsSubmitted
    | WaitsCharged
    | PlanDecided
    | WorkerRegistered
    | WorkerChanged
    | AttemptAccepted
    | AttemptStarted
    | AttemptEnded
    | CancelRequested
    | WorkerSilent
    | WorkerReturned
    | AttemptsLost
    | AttemptRevoked
    | WaitTimedOut
    | WorkerDrained
    | WorkerLabelled
    | WorkerLeft
    | LimitPassed
    | EpochStarted
    | WorkerForgotten
    | ArrayExtended
    | PolicyChanged
    | TemplateAdded
    | TemplateRemoved
    | AttemptSaved
    | HoldChanged
    | JobEdited
    | RequeueRequested
    | CallsFed
    | CallsEnded
    | LanesClosed
    | AttemptYielded
    | AttemptResumed
    | AlarmChanged
    | IdleReached
    | DeadlineLost
    | ServiceFact
    | WorkloadFact
    | LaunchFact
)


class Heard(NamedTuple):
    """Any message of a worker is a sign of life."""

    worker: str


class SlotsSeen(NamedTuple):
    """A heartbeat's slots; capability changes ride as `WorkerChanged`."""

    worker: str
    slots: Slots


class CreditSet(NamedTuple):
    """`ready_for_work`: sets, never adds; asks for an answer in this turn. `not_ready`: why it can start nothing."""

    worker: str
    credits: int
    slots: Slots
    not_ready: str = ""


class SessionOpened(NamedTuple):
    """A worker is about to register on a new socket; an older session under its id gives way."""

    worker: str
    session: int
    incarnation: str


class SessionClosed(NamedTuple):
    """A socket broke. `clean` closes ride as `WorkerLeft` as well."""

    worker: str
    session: int


class SessionsResumed(NamedTuple):
    """Sockets that another hub has kept go on under this one; their workers notice nothing."""

    sessions: tuple[ResumedSession, ...]


class Suspected(NamedTuple):
    """A worker was silent long enough to get no new work."""

    worker: str


class StopDue(NamedTuple):
    """An attempt was asked to stop and has not been confirmed gone: ask again."""

    uid: str


class ResendDue(NamedTuple):
    """An unaccepted assignment to a worker that asked to be asked again."""

    uid: str


class GoDue(NamedTuple):
    """A member of a gang may start and has not said that it did: tell it again."""

    uid: str


class ProtectDue(NamedTuple):
    """The first task of a blocked job has waited long enough to be protected."""

    job_id: str


class LookDue(NamedTuple):
    """A blocked job may have victims now that were out of reach before."""

    job_id: str


class GateDue(NamedTuple):
    """Time alone may have opened a gate: tokens have come in, or a period has ended."""

    gate: str


class Progressed(NamedTuple):
    """How far an attempt has come, by its own word; None where it did not say."""

    worker: str
    uid: str
    step: int | None = None
    fraction: float | None = None
    note: str | None = None


class UsesSeen(NamedTuple):
    """What attempts on a worker have used so far, by uid."""

    worker: str
    uses: dict[str, Use]


class ResumeAsked(NamedTuple):
    """An attempt that yielded wants its slot and cores back. Its agent asks again until it hears that it has them."""

    worker: str
    uid: str


class CutDue(NamedTuple):
    """A call was cancelled by itself and has not been confirmed gone: ask again."""

    uid: str
    call: int


class LingerDue(NamedTuple):
    """A lane without calls has been kept long enough for more of them to come."""

    uid: str


class PauseOver(NamedTuple):
    """A worker that started nothing of what it was given has been left alone long enough."""

    worker: str


Signal = (
    Heard
    | SlotsSeen
    | CreditSet
    | SessionOpened
    | SessionClosed
    | SessionsResumed
    | Suspected
    | ResendDue
    | StopDue
    | GateDue
    | ProtectDue
    | LookDue
    | GoDue
    | Progressed
    | UsesSeen
    | ResumeAsked
    | CutDue
    | LingerDue
    | PauseOver
    | PassSignal
    | LaunchSignal
)
Event = Fact | Signal

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Fact])


def pack_facts(facts: list[Fact]) -> bytes:
    """Encode one turn's facts for the log."""
    return _encoder.encode(facts)


def unpack_facts(packed: bytes) -> list[Fact]:
    """Undo `pack_facts`."""
    return _decoder.decode(packed)


def is_fact(event: Event) -> bool:
    """Tell what is committed from what is not."""
    return isinstance(event, msgspec.Struct)
