"""Durable records beside jobs, workers and their attempts: the policy in force, usage, receipts of preemptions,
what running out of GPU memory has taught, templates, revisions of services, how it goes at providers, workloads,
launches,
how fast jobs run on which cards.

Few and small: each is one row of one table, found by (kind, key). Stored as arrays: fields are only ever appended, each
with a default.
"""

from __future__ import annotations

import msgspec

from dray.core.model.records.workload import WorkloadRecord

LedgerKey = tuple[str, str]
# Others were moved to make room: all other causes of a move are about who is moved.
ASIDE = "aside"
# How far a move has come, in this order; `returning`: it could not start there and goes back to where it was.
CLAIMED, SAVING, STARTING, SETTLING, RETURNING = "claimed", "saving", "starting", "settling", "returning"
DONE, ROLLED_BACK, CALLED_OFF, FAILED = "done", "rolled_back", "called_off", "failed"
UNDER_WAY = (CLAIMED, SAVING, STARTING, SETTLING, RETURNING)


class PolicyRecord(msgspec.Struct, frozen=True, array_like=True):
    """The policy in force and where it came from; `digest` names the content of the file it was read from."""

    policy: bytes = b""
    origin: str = "default"
    user: str = ""
    digest: str = ""
    at_ms: int = 0


class Meter(msgspec.Struct, array_like=True, gc=False):
    """What one user, queue or plugin has used, up to `since_ms`; what it holds now flows on from there.

    `decayed` is fair share's usage in cost-milliseconds, halving as the policy says; `gpu_ms` counts milli-GPU
    milliseconds of the present period.
    """

    since_ms: int = 0
    decayed: float = 0.0
    period: int = 0
    gpu_ms: int = 0


class Victim(msgspec.Struct, frozen=True, array_like=True):
    """One attempt that was stopped for another task, and what that cost it.

    `members`: how many tasks went with it, itself included, since a gang goes whole; `lost_ms` is that of all of them.
    0: it went with another victim of the same gang and is counted there. `to`: the worker it was moved to, with these
    cards and by this alternative; empty where it was only stopped.

    Of a move that is carried out for its own sake: the place that it had (`devices`, `variant`), how far its move has
    come (`stage`, since `since_ms` by hub time), and the attempt by which it started again. `down_ms`: from the moment
    it was asked to stop until that one ran. `rate`: what an hour of it cost before, in millionths.
    """

    uid: str
    job_id: str
    index: int
    worker: str
    user: str = ""
    priority: int = 0
    ran_ms: int = 0
    lost_ms: int = 0
    grace_s: float = 0
    members: int = 1
    to: str = ""
    to_devices: tuple[int, ...] = ()
    to_variant: int = 0
    devices: tuple[int, ...] = ()
    variant: int = 0
    stage: str = ""
    since_ms: int = 0
    next_uid: str = ""
    asked_ms: int = 0
    down_ms: int = 0
    rate: int = 0
    note: str = ""


class Receipt(msgspec.Struct, array_like=True):
    """One preemption: for whom, by which rule, whom it stopped, and how it went.

    `open` holds the victims' room for the preemptor; then it was `served`, `rolled_back` (the preemptor no longer
    waits) or `lapsed` (the room went with its worker). `uids` of victims that are confirmed gone move to `gone`.

    Or work that was moved for its own sake: then `rule` is its `cause`, nothing is kept for anybody else, and `status`
    says `open`, then `done`, `rolled_back`, `called_off` or `failed`. `by`: who ordered it. `gain` and `cost` are what
    was foretold, in one `unit`; `won` is what it has come to since. Of a preemption that moved others aside the cause
    is `aside`.
    """

    id: str
    at_ms: int
    job_id: str
    index: int
    user: str
    queue: str
    priority: int
    rule: str
    workers: tuple[str, ...]
    victims: tuple[Victim, ...]
    kind: str = ""
    need: str = ""
    devices: tuple[tuple[int, ...], ...] = ()
    variant: int = 0
    status: str = "open"
    gone: tuple[str, ...] = ()
    now_ms: int = 0
    served_at_ms: int = 0
    ended_at_ms: int = 0
    cause: str = ""
    by: str = ""
    why: str = ""
    gain: int = 0
    cost: int = 0
    unit: str = ""
    won: int = 0
    settled: bool = False

    @property
    def is_move(self) -> bool:
        """Whether work was moved for its own sake, and not stopped for other work."""
        return self.cause not in ("", ASIDE)

    @property
    def is_open(self) -> bool:
        """Whether room is kept for somebody whom others make room for."""
        return self.status == "open" and not self.is_move


class AlarmRecord(msgspec.Struct, frozen=True, array_like=True):
    """Something that is wrong now, since `at_ms`; `job_id` where it is about somebody's job."""

    kind: str
    subject: str
    text: str
    at_ms: int
    job_id: str = ""


class AdviceRecord(msgspec.Struct, frozen=True, array_like=True):
    """What further workers would have brought, as it was told: so many of the kind `key` beside `here` of them, `like`
    one of those, would have let the middle wait fall from `before_ms` to `foretold_ms`.
    """

    key: str
    kind: str
    like: str
    count: int
    here: int
    before_ms: int
    foretold_ms: int
    at_ms: int = 0


class Lesson(msgspec.Struct, frozen=True, array_like=True):
    """Cards with no more memory than `vram_bytes` are too small for jobs of a user and name, as `job_id` found out."""

    vram_bytes: int
    job_id: str
    at_ms: int = 0


class TemplateVersion(msgspec.Struct, frozen=True, array_like=True):
    """One version of a template, by whom and since when; no document where the template was removed since."""

    version: int
    digest: str
    document: bytes
    user: str = ""
    at_ms: int = 0


class TemplateRecord(msgspec.Struct, frozen=True, array_like=True):
    """A template's last versions, oldest first. One that was removed stays as its history, so that a version never
    means two things.
    """

    versions: tuple[TemplateVersion, ...]
    removed_at_ms: int = 0
    removed_by: str = ""


class Revision(msgspec.Struct, frozen=True, array_like=True):
    """One revision of a service's spec: by whom and how it came (`submit`, `update`, `restart`, `rollback`), when it
    was last begun, and its receipt: `outcome` is empty while it is under way, then `done`, `rolled_back`, `replaced`.
    """

    number: int
    spec: bytes
    user: str = ""
    at_ms: int = 0
    kind: str = "update"
    outcome: str = ""
    why: str = ""
    ended_at_ms: int = 0


class RevisionsRecord(msgspec.Struct, frozen=True, array_like=True):
    """The last revisions of one service that was updated, by number."""

    revisions: tuple[Revision, ...]


class ProviderRecord(msgspec.Struct, array_like=True, gc=False):
    """How it goes on the workers of one provider, as of `since_ms` (hub time); all sums halve within a week.

    `days` are worker-days, `faults` what the provider spoilt, `money` (millionths) what attempts there have cost;
    `starts` counts by the power of two of its milliseconds how long an attempt took to begin. Sums that are `recent`
    halve within an hour, those of the `month` within a month. `last_loss` says when which worker was lost last.
    """

    since_ms: int = 0
    losses: float = 0
    days: float = 0
    succeeded: float = 0
    faults: float = 0
    money: float = 0
    starts: tuple[float, ...] = ()
    recent_ends: float = 0
    recent_faults: float = 0
    recent_losses: float = 0
    recent_days: float = 0
    month_losses: float = 0
    month_days: float = 0
    health: str = "ok"
    why: str = ""
    health_at_ms: int = 0
    last_loss: str = ""


class ChoiceRecord(msgspec.Struct, frozen=True, array_like=True):
    """The placement strategy that was chosen for the cluster as it is, by which rule and why, and since when (hub time
    and wall time); `times`: how often it was another one before, of which `before` was the last.
    """

    strategy: str
    rule: int = 0
    why: str = ""
    since_ms: int = 0
    at_ms: int = 0
    times: int = 0
    before: str = ""


class LaunchRecord(msgspec.Struct, frozen=True, array_like=True):
    """One worker that was asked for: `asked`, `starting` (its command may have run), `joined`, `draining`, `ending` (it
    is to be ended), then `ended` or `failed`. Its id is the name of the worker.

    `since_ms` (hub time): when it became what it is. `handle`: what the site calls it. `rate`: what it costs an hour,
    in millionths. `failed`: whether it ends as a failure. `said`: the site's own last word.
    """

    launcher: str
    state: str = "asked"
    asked_at_ms: int = 0
    since_ms: int = 0
    handle: str = ""
    job_id: str = ""
    why: str = ""
    user: str = ""
    rate: int = 0
    started_at_ms: int = 0
    joined_at_ms: int = 0
    ended_at_ms: int = 0
    failed: bool = False
    said: str = ""


class LauncherRecord(msgspec.Struct, frozen=True, array_like=True):
    """How it goes with one launcher: the number of its next launch, how often in a row it failed, until when (hub time)
    it is left alone for that, and what is left of what it may ask for, as of `since_ms`.
    """

    next: int = 1
    failures: int = 0
    again_ms: int = 0
    why: str = ""
    left: float = 0
    since_ms: int = 0


class SpeedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Steps a second that jobs of one name make on one kind of card: the last of what was measured, newest last.

    `error`: by what part of it the next measurement was foretold wrong, of late, by those before it.
    """

    name: str
    kind: str
    samples: tuple[float, ...] = ()
    error: float = 0.0
    at_ms: int = 0


LedgerRecord = (
    PolicyRecord
    | Meter
    | Receipt
    | AlarmRecord
    | AdviceRecord
    | Lesson
    | TemplateRecord
    | RevisionsRecord
    | ProviderRecord
    | WorkloadRecord
    | ChoiceRecord
    | LaunchRecord
    | LauncherRecord
    | SpeedRecord
)
KINDS: dict[str, type[LedgerRecord]] = {
    "policy": PolicyRecord,
    "meter": Meter,
    "receipt": Receipt,
    "alarm": AlarmRecord,
    "advice": AdviceRecord,
    "lesson": Lesson,
    "template": TemplateRecord,
    "revisions": RevisionsRecord,
    "provider": ProviderRecord,
    "workload": WorkloadRecord,
    "placement": ChoiceRecord,
    "launch": LaunchRecord,
    "launcher": LauncherRecord,
    "speed": SpeedRecord,
}
_encode = msgspec.msgpack.Encoder().encode
_DECODERS = {kind: msgspec.msgpack.Decoder(record) for kind, record in KINDS.items()}


def pack_record(record: LedgerRecord) -> bytes:
    """Encode one record for its row."""
    return _encode(record)


def unpack_record(kind: str, packed: bytes) -> LedgerRecord:
    """Undo `pack_record`."""
    return _DECODERS[kind].decode(packed)
