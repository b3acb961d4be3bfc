"""What is asked of operations, where neither a message of the channel nor a filter of the answers says it all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.model.policies.policy import Policy
from dray.core.model.specs.spec import JobSpec
from dray.hub.files.base import Reading


class Nothing(msgspec.Struct):
    """There is nothing to say."""


class Named(msgspec.Struct):
    """One thing by its id."""

    id: str


class ComparePlacements(msgspec.Struct):
    """Placement strategies to be compared."""

    strategies: tuple[str, ...]


class NamedService(msgspec.Struct):
    """One service by its name, or by the id of its job."""

    name: str


class RestartService(NamedTuple):
    """A service whose replicas shall start anew, or one of them."""

    name: str
    replica: int | None = None
    at_once: bool = False


class StopService(NamedTuple):
    """A service that shall go on no longer."""

    name: str
    grace_s: float | None = None


class SubmitJobs(NamedTuple):
    """New jobs, all or none; the same key again gives the same jobs. `exists`: what to do about ids that are taken."""

    specs: Sequence[JobSpec | Any]
    key: str = ""
    exists: str = "same"


class ShowJob(msgspec.Struct):
    """One job, once it has ended or `wait_s` have passed."""

    id: str
    wait_s: float = 0


class ListTasks(NamedTuple):
    """Tasks of one job, in these states or in any."""

    id: str
    states: tuple[str, ...] = ()
    cursor: str = ""
    limit: int = 100


class ShowTask(NamedTuple):
    """One task of a job; its only one by default."""

    id: str
    task: int | None = None


COUNTED_BY = ("state", "user", "queue", "name", "workload")


class GroupJobs(NamedTuple):
    """How many jobs there are in each group of those that are all of what is given."""

    by: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    user: str = ""
    queue: str = ""
    name: str = ""
    workload: str = ""


class RerunJob(NamedTuple):
    """A job to be submitted once more, with some fields changed; `failed`: only the tasks that did not succeed."""

    id: str
    changes: dict[str, Any]
    failed: bool = False
    key: str = ""


class ShowStudy(msgspec.Struct):
    """One study, once it is over or `wait_s` have passed."""

    id: str
    wait_s: float = 0


class ExplainJob(msgspec.Struct):
    """Why a job waits; `eta_s` is how long to wait for an estimate of its start."""

    id: str
    fix: bool = True
    eta_s: float = 0


class PlanJob(msgspec.Struct):
    """Where a job would run."""

    spec: JobSpec | dict[str, Any]
    eta_s: float = 0


class CountJobs(msgspec.Struct):
    """Jobs of one user, or of all; those that have ended since a moment."""

    user: str = ""
    ended_after: str = ""


class ShowHistory(NamedTuple):
    """Which series, from when to when; `step_s`: how long one value stands for."""

    series: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    step_s: int = 0


class ShowCluster(msgspec.Struct):
    """All workers in columns; `group`: the label by which they are grouped too."""

    group: str = ""


class ShowOverview(NamedTuple):
    """The cluster at a glance: workers sorted and matched so, from `offset` on, and the first that wait."""

    sort: str = "name"
    match: str = ""
    offset: int = 0
    limit: int = 50
    heads: int = 10


class DrainWorker(NamedTuple):
    """A worker that is to get no new work, why, and until when; `stop`: what runs there is queued again, `move`: it is
    moved elsewhere. `ends`: when its machine is taken away.
    """

    id: str
    reason: str = ""
    until: str = ""
    stop: bool = False
    dry_run: bool = False
    ends: str = ""
    move: bool = False


class MoveJob(NamedTuple):
    """What runs of a job, or of one task, goes to a worker, or to wherever there is the best room."""

    id: str
    task: int | None = None
    to: str = ""


class PlanRebalance(msgspec.Struct):
    """What would be moved, for one cause or for all that the policy names."""

    cause: str = ""


class StartRebalance(NamedTuple):
    """A plan that was looked at is to be carried out."""

    etag: str
    cause: str = ""


class LabelWorker(NamedTuple):
    """Labels to give to a worker; None takes one back."""

    id: str
    labels: dict[str, str | None]


class RemoveWorker(msgspec.Struct):
    """A worker that is gone for good; `force`: what it may still run is given up."""

    id: str
    force: bool = False


class FollowEvents(NamedTuple):
    """All that is committed after this event; of one job, one worker, of some types."""

    after: str = ""
    job: str = ""
    worker: str = ""
    types: tuple[str, ...] = ()


class ShowLoad(msgspec.Struct):
    """What the tries of a job that run have used, or those of one task of it."""

    id: str
    task: int | None = None


class OpenSession(NamedTuple):
    """A browser that signs in, with a token or a code; where from, and whether by TLS."""

    token: str
    code: str
    peer: str
    secure: bool


class ShowQueue(msgspec.Struct):
    """One queue, and so many of its line."""

    name: str
    limit: int = 20


class ApplyPolicy(NamedTuple):
    """Another policy, or what it would change."""

    policy: Policy | Any
    dry_run: bool = False
    force: bool = False
    etag: str = ""


class NamedSo(msgspec.Struct):
    """One thing by its name."""

    name: str


class ListLaunches(msgspec.Struct):
    """Launches, of one launcher only; `all`: also those that are over."""

    launcher: str = ""
    all: bool = False


class ShowTemplate(msgspec.Struct):
    """A template in one of its versions, the newest by default."""

    name: str
    version: int | None = None

    @property
    def spelled(self) -> str:
        """As jobs name it."""
        return self.name if self.version is None else f"{self.name}@{self.version}"


class RenderTemplate(NamedTuple):
    """A template, and values for its parameters."""

    template: ShowTemplate
    params: dict[str, Any]


class AddTemplate(NamedTuple):
    """A template as it is written."""

    document: Any


class ListAudit(msgspec.Struct):
    """The last entries."""

    limit: int = 100


class PutBlob(NamedTuple):
    """A large value under its digest. `size` is what was announced; pieces come with whether they are the last."""

    digest: str
    size: int
    pieces: AsyncIterator[tuple[list[bytes], bool]]


class GetBlob(NamedTuple):
    """A large value. `soon`: whoever asks is about to refer to it."""

    digest: str
    soon: bool = False


class ReadValue(msgspec.Struct):
    """What one call left; its job's only task by default."""

    id: str
    task: int | None = None


class StoredFile(NamedTuple):
    """Bytes that the hub keeps beside its store; `open` belongs in a thread."""

    open: Callable[[], Reading]
    size: int


class LeftValue(NamedTuple):
    """What a call left, as bytes or in a file; `state` says how it ended."""

    state: str
    packed: bytes | StoredFile
