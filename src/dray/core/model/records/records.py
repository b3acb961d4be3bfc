"""Jobs, tasks and attempts as the hub holds them while they live.

`gc=False` structs of atoms: a million of them must not slow the garbage collector, so the spec stays packed bytes and
nothing here points at another record. Ids join them. They are stored as arrays: fields are only ever appended,
each with a default, so that an older row still reads.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class JobState(StrEnum):
    """What a user sees of a job and of each of its tasks."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    WORKER_FAILED = "worker_failed"
    UNSCHEDULABLE = "unschedulable"

    @property
    def final(self) -> bool:
        """Whether it never changes again."""
        return self not in OPEN_STATES


# Named once: looking a member up by its name takes longer than the comparison.
OPEN_STATES = (JobState.PENDING, JobState.RUNNING)


class Phase(StrEnum):
    """Where an attempt stands; the last six are final."""

    ASSIGNED = "assigned"
    ACCEPTED = "accepted"
    RUNNING = "running"
    STOPPING = "stopping"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    PREEMPTED = "preempted"
    LOST = "lost"
    REVOKED = "revoked"

    @property
    def live(self) -> bool:
        """Whether it holds resources on its worker."""
        return self in LIVE_PHASES


LIVE_PHASES = (Phase.ASSIGNED, Phase.ACCEPTED, Phase.RUNNING, Phase.STOPPING, Phase.UNKNOWN)
# The index of an attempt that is a lane: it belongs to no task, calls of its job go through it.
LANE = -1
LONGEST_S = 100 * 365 * 86400.0


class Job(msgspec.Struct, gc=False, kw_only=True, array_like=True):
    """One submitted job. Tasks that were never placed have no record of their own: they are the range [cursor, total).

    `rest` is the state that this range shares: pending, or how it ended without being placed (`rest_class` where that
    has an exit class of its own). `holes` counts tasks inside the range that ended by themselves (cancelled one by one)
    and do have a record. `waiting_since_ms` restarts with each placement: an array that moves on does not time out.
    `held` by a person (`held_by`), or while `after` names jobs that have not ended: it is in no line. `original` is the
    spec as submitted, where an edit changed it. Of a gang `nodes` tasks are a group each, of batch work all of them
    (0 in older rows); it counts the tries of all its groups in `generation`, `blamed` says which worker is avoided.
    `broken` and `breaker` are of older rows: a group has them with its first task.
    `ranked`: its priority was given, not taken from its tier. `deadline_ms` is wall time, as is `judged_at_ms`: when it
    was last found that some of what waits of it cannot meet that any more. `calls`: its tasks are calls of a function
    and go through lanes; a call has a record of its own only once it had trouble, and [0, cursor) was fed into lanes at
    least once. `outgrown_bytes`: cards with no more memory than that have proved too small for it, as the job
    `outgrown_by` found out, and `spec` asks for more. `service`: its tasks are replicas, which start again whenever
    they end; `resting` of them pause before that. It is `open` until it is stopped. `spec` is its `revision`, `newest`
    the highest number of one, `stable` the one that was last whole: another while it is updated. While some replicas
    are replaced by others there may be more of them than it is to have in the end, which is its `aim` then (-1: nobody
    is replaced). `stepped_ms` (hub time): when that last came forward. `uses`: the services that have to be ready when
    it starts; `unserved`: one of them is not. `money`: what its attempts that have ended have cost, in millionths;
    `waits`: for how long it waited for what, as far as that was charged by `waits_ms` (hub time), see `waits.REASONS`;
    `objective`: what it said of how to choose among workers, as `specs.objectives` packs it.
    """

    id: str
    seq: int
    user: str
    name: str
    queue: str
    priority: int
    tier: str
    shape: int = -1
    spec: bytes
    numbered: bool
    total: int
    cursor: int = 0
    limit: int = 0
    open: bool = False
    retries: int = 0
    losses_allowed: int = 3
    state: JobState = JobState.PENDING
    rest: JobState = JobState.PENDING
    cancelled: bool = False
    requeued: int = 0
    holes: int = 0
    live: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    killed: int = 0
    worker_failed: int = 0
    unschedulable: int = 0
    timeout_ms: int = 0
    limit_ms: int = 0
    lost_after_ms: int = 0
    waiting_since_ms: int = 0
    submitted_at_ms: int = 0
    started_at_ms: int = 0
    ended_at_ms: int = 0
    error: str = ""
    held: bool = False
    after: tuple[str, ...] = ()
    gang: bool = False
    generation: int = 0
    blamed: str = ""
    broken: str = ""
    plugin: str = ""
    ranked: bool = False
    expected_ms: int = 0
    deadline_ms: int = 0
    party: int = -1
    breaker: str = ""
    held_by: str = ""
    original: bytes = b""
    rest_class: str = ""
    calls: bool = False
    outgrown_bytes: int = 0
    outgrown_by: str = ""
    template: str = ""
    service: bool = False
    resting: int = 0
    uses: tuple[str, ...] = ()
    unserved: bool = False
    revision: int = 1
    stable: int = 1
    newest: int = 1
    aim: int = -1
    stepped_ms: int = 0
    nodes: int = 0
    money: int = 0
    objective: str = ""
    workload: str = ""
    judged_at_ms: int = 0
    waits: tuple[int, ...] = ()
    waits_ms: int = 0

    @property
    def group_size(self) -> int:
        """How many tasks start together or not at all."""
        return (self.nodes or self.total) if self.gang else 1

    def group_of(self, index: int) -> range:
        """The tasks that start and end with one, by rank: of anything but a gang that one alone."""
        first = index - index % self.group_size
        return range(first, first + self.group_size)

    @property
    def barred(self) -> bool:
        """Whether it stands in no line: held, or waiting for other jobs or for a service."""
        return self.held or bool(self.after) or self.unserved

    def spelled(self, index: int) -> int:
        """A task's index as its id spells it; -1 where it goes by the job's own, as the first of an unnumbered job."""
        return index if self.numbered or index > 0 else -1

    @property
    def waiting(self) -> int:
        """Tasks that neither run nor ended: those never placed and those queued again."""
        return self.untouched + self.requeued

    @property
    def untouched(self) -> int:
        """Tasks that were never placed and still may be."""
        return self.total - self.cursor - self.holes if self.rest in OPEN_STATES else 0

    @property
    def ended(self) -> int:
        """Tasks that reached a final state."""
        return self.succeeded + self.failed + self.killed + self.worker_failed + self.unschedulable


class Task(msgspec.Struct, gc=False, kw_only=True, array_like=True):
    """One task that was placed at least once, or ended by itself without it. `index` counts from 0 within its job.

    Exactly one of these holds: `current` names its live attempt; `queued`; `state` is final; `again_ms`. A final task
    may still have an attempt that is stopping: "killed" and "the process is gone" are two facts. `ahead`: it was
    preempted and heads its band. `outgrown`: its attempts that are charged to nothing, since the next one gets a larger
    card.

    A replica of a service that has ended rests until `again_ms` (hub time) before it is queued again. `restarts` counts
    such ends since it was last well for long, `ends_ms` says when the last of them were; `looping`: there were too many
    of them, and it has not been well for long since. It runs by a `revision` of the spec for all its life; from
    `leaving_ms` on (hub time) it gets no new requests, and is stopped soon after. All of this is the same for all tasks
    of a group. The first of them says how the present generation came to its end while members are still stopping
    (`broken`), and by which attempt (`breaker`).
    """

    job_id: str
    index: int
    state: JobState = JobState.PENDING
    current: str = ""
    queued: bool = False
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    preemptions: int = 0
    used_ms: int = 0
    last_uid: str = ""
    exit_code: int | None = None
    signal: int = 0
    exit_class: str = ""
    error: str = ""
    started_at_ms: int = 0
    ended_at_ms: int = 0
    ahead: bool = False
    outgrown: int = 0
    again_ms: int = 0
    restarts: int = 0
    ends_ms: tuple[int, ...] = ()
    looping: bool = False
    revision: int = 1
    leaving_ms: int = 0
    broken: str = ""
    breaker: str = ""


class Attempt(msgspec.Struct, gc=False, kw_only=True, array_like=True):
    """One try of a task on one worker. Times ending in `_ms` are hub time; `_at_ms` are wall time for people.

    `cancel` is the reason it was asked to stop ("" for none). `started` stays True once user code may have run: it
    decides whether a loss is charged. `variant` is the alternative by which it runs. `go`: its gang passed the start
    barrier. `saved_ms` is how much of its run time its last checkpoint covers. `last` is what it printed last, where it
    failed and its worker says so. `gpu_s`: for how long its cards were busy, of `gpu_seen_s` for which somebody looked.
    `idling`: the last step that the policy took because they were not.

    A lane is an attempt of no task (`index` is LANE): a held place through which calls of its job go, one at a time, in
    the order given. `calls` are those given and not ended, by index with the number of the try; below 0: cancelled, and
    not confirmed gone. `fed_ms`: when it was last given any. `yielded`: an attempt, of a task or a lane, that waits for
    others and has given its slot and cores up meanwhile.

    `behind`: the attempt, of its own job and on its own worker, whose place it takes when that one has ended; it holds
    nothing until then. `fed_ms` says when it was given out so, and stays.

    `health` is what was last said of a replica, `health_ms` since when it is so (hub time), `health_note` in words; of
    one that nobody checks nothing is said. `ills`: how often in a row a worker that knows no more said it is not well.

    `rate`: what an hour of it costs, in millionths, by the price list in force when it was given out.
    """

    uid: str
    job_id: str
    index: int
    no: int
    fence: int
    worker: str
    shape: int
    phase: Phase = Phase.ASSIGNED
    devices: tuple[int, ...] = ()
    generation: int = 0
    started: bool = False
    cancel: str = ""
    grace_s: float = 0
    cancel_ms: int = 0
    assigned_ms: int = 0
    started_ms: int = 0
    limit_ms: int = 0
    lost_after_ms: int = 0
    assigned_at_ms: int = 0
    accepted_at_ms: int = 0
    started_at_ms: int = 0
    ended_at_ms: int = 0
    pid: int = 0
    address: str = ""
    ports: tuple[int, ...] = ()
    exit_code: int | None = None
    signal: int = 0
    exit_class: str = ""
    error: str = ""
    wall_s: float = 0
    cpu_s: float = 0
    max_rss_bytes: int = 0
    value: bytes = b""
    digest: str = ""
    variant: int = 0
    go: bool = False
    saved_step: int = 0
    saved_ms: int = 0
    calls: dict[int, int] | None = None
    yielded: bool = False
    fed_ms: int = 0
    last: str = ""
    behind: str = ""
    gpu_s: float = 0
    gpu_seen_s: float = 0
    max_gpu_bytes: int = 0
    idling: str = ""
    health: str = ""
    health_ms: int = 0
    health_note: str = ""
    ills: int = 0
    revision: int = 1
    rate: int = 0

    @property
    def span_ms(self) -> int:
        """How long it ran; a worker is believed up to a century: older stores hold what nobody would take now."""
        said_ms = round(self.wall_s * 1000) if 0 < self.wall_s < LONGEST_S else 0
        return said_ms or self.ended_at_ms - self.started_at_ms

    @property
    def lane(self) -> bool:
        """Whether it is a held place for calls, not a try of one task."""
        return self.index == LANE
