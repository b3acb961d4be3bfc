"""Operations on workloads: to make, fill, switch, change and follow them. Whose it is may do all of it, members add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from dray.core.lifecycle.state.workload_events import ARCHIVE, CANCEL, PAUSE, SEAL, START
from dray.errors import Conflict, NoSpace
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document, Submitted
from dray.hub.operations.operation import READ, SUBMIT, Desk, Operation, Workloads
from dray.hub.workloads.answers import Wanted
from dray.wire.schemas import workloads as shapes


class Named(msgspec.Struct):
    """One workload by its id."""

    id: str


class CreateWorkload(NamedTuple):
    """A workload as it is written, with its first jobs; the same key again makes the same ones."""

    document: dict[str, Any]
    key: str = ""
    dry_run: bool = False


class ShowWorkload(msgspec.Struct):
    """One workload, once it has ended or `wait_s` have passed."""

    id: str
    wait_s: float = 0


class UpdateWorkload(NamedTuple):
    """Fields to change; None takes one back to its default."""

    id: str
    changes: dict[str, Any]
    etag: str = ""


class PauseWorkload(NamedTuple):
    """Nothing more of it starts; `stop`: what runs is stopped as well and queued again."""

    id: str
    stop: bool = False


class ScaleWorkload(NamedTuple):
    """So many of its tasks at once."""

    id: str
    width: int


class SpreadWorkload(NamedTuple):
    """How its tasks are to lie from now on."""

    id: str
    distribution: dict[str, Any]


class CancelWorkload(NamedTuple):
    """Stop all of it."""

    id: str
    grace_s: float | None = None


class AddJobs(NamedTuple):
    """New jobs for it, all or none; the same key again gives the same jobs. `seal`: they are the last ones."""

    id: str
    jobs: Any
    key: str = ""
    seal: bool = False


class AttachJobs(NamedTuple):
    """Jobs that are there already, to be put in or taken out."""

    id: str
    attach: Sequence[str] = ()
    detach: Sequence[str] = ()


class ListWorkloadTasks(NamedTuple):
    """Its tasks in these states, or in any."""

    id: str
    states: tuple[str, ...] = ()
    cursor: str = ""
    limit: int = 100


class ListResults(NamedTuple):
    """What has ended behind an event; with none that comes within `wait_s`."""

    id: str
    after: str = ""
    limit: int = 1000
    wait_s: float = 0


class ShowDistribution(NamedTuple):
    """Where its tasks lie, by the label that it names or another one."""

    id: str
    by: str = ""


def _of(desk: Desk) -> Workloads:
    assert desk.workloads is not None  # every front that names these operations has them
    return desk.workloads


async def _create(desk: Desk, caller: Caller, ask: CreateWorkload) -> Document:
    return await _of(desk).create(caller, ask.document, ask.key, ask.dry_run)


async def _add(desk: Desk, caller: Caller, ask: AddJobs) -> Submitted:
    return await _of(desk).add(caller, *ask)


async def _pause(desk: Desk, caller: Caller, ask: PauseWorkload) -> Document:
    return await _of(desk).switch(caller, ask.id, PAUSE, ask.stop)


async def _cancel(desk: Desk, caller: Caller, ask: CancelWorkload) -> Document:
    return await _of(desk).switch(caller, ask.id, CANCEL, True, ask.grace_s)


WORKLOADS = (
    Operation("create_workload", "Make a workload, with its first jobs where some are given", SUBMIT, CreateWorkload,
              shapes.CreatedWorkload, _create, weight=2, repeat="same", errors=(Conflict, NoSpace)),
    Operation("list_workloads", "List workloads, newest first", READ, Wanted, shapes.WorkloadList,
              lambda desk, caller, ask: _of(desk).list(caller, ask), weight=2, paged=True),
    Operation("show_workload", "Show a workload, or wait for its end", READ, ShowWorkload, shapes.WorkloadDocument,
              lambda desk, caller, ask: _of(desk).show(caller, ask.id, ask.wait_s)),
    Operation("update_workload", "Change what is said of a workload: purse, deadline, width, labels and more", SUBMIT,
              UpdateWorkload, shapes.WorkloadDocument,
              lambda desk, caller, ask: _of(desk).update(caller, *ask), weight=2, repeat="same", errors=(Conflict,)),
    Operation("delete_workload", "Forget an archived workload", SUBMIT, Named, shapes.RemovedWorkload,
              lambda desk, caller, ask: _of(desk).drop(caller, ask.id), repeat="same", errors=(Conflict,)),
    Operation("start_workload", "Let the tasks of a workload start; also after a pause", SUBMIT, Named,
              shapes.WorkloadDocument, lambda desk, caller, ask: _of(desk).switch(caller, ask.id, START),
              repeat="same", errors=(Conflict,)),
    Operation("pause_workload", "Start nothing more of a workload; what runs goes on, or is stopped", SUBMIT,
              PauseWorkload, shapes.WorkloadDocument, _pause, repeat="same", errors=(Conflict,)),
    Operation("scale_workload", "Change how many tasks of a workload run at once", SUBMIT, ScaleWorkload,
              shapes.WorkloadDocument, lambda desk, caller, ask: _of(desk).scale(caller, *ask), repeat="same",
              errors=(Conflict,)),
    Operation("spread_workload", "Change how the tasks of a workload lie on the cluster", SUBMIT, SpreadWorkload,
              shapes.WorkloadDocument, lambda desk, caller, ask: _of(desk).spread(caller, *ask), repeat="same",
              errors=(Conflict,)),
    Operation("seal_workload", "Take no more jobs: a workload ends when its last one has", SUBMIT, Named,
              shapes.WorkloadDocument, lambda desk, caller, ask: _of(desk).switch(caller, ask.id, SEAL),
              repeat="same", errors=(Conflict,)),
    Operation("cancel_workload", "Stop all of a workload", SUBMIT, CancelWorkload, shapes.WorkloadDocument, _cancel,
              weight=5, repeat="same", errors=(Conflict,)),
    Operation("archive_workload", "Put an ended workload away", SUBMIT, Named, shapes.WorkloadDocument,
              lambda desk, caller, ask: _of(desk).switch(caller, ask.id, ARCHIVE), repeat="same", errors=(Conflict,)),
    Operation("add_jobs", "Submit jobs to a workload, all or none", SUBMIT, AddJobs, shapes.AddedJobs, _add, weight=0,
              repeat="key", errors=(Conflict, NoSpace)),
    Operation("attach_jobs", "Put jobs that are there already into a workload, or take them out", SUBMIT, AttachJobs,
              shapes.AttachAnswer, lambda desk, caller, ask: _of(desk).attach(caller, *ask), weight=5, repeat="same"),
    Operation("retry_workload", "Submit again what failed of a workload, each task once", SUBMIT, Named,
              shapes.RetriedWorkload, lambda desk, caller, ask: _of(desk).reports.retry(caller, ask.id), weight=5,
              repeat="same", errors=(Conflict, NoSpace)),
    Operation("list_workload_tasks", "List the tasks of a workload over all of its jobs", READ, ListWorkloadTasks,
              shapes.WorkloadTasks, lambda desk, caller, ask: _of(desk).reports.tasks(caller, *ask), weight=2,
              paged=True),
    Operation("list_results", "Tell what ended of a workload, each task once; a reader goes on where it was", READ,
              ListResults, shapes.WorkloadResults, lambda desk, caller, ask: _of(desk).reports.results(caller, *ask),
              weight=2),
    Operation("explain_workload", "Tell what keeps the rest of a workload waiting, the largest part first", READ,
              Named, shapes.WorkloadWhy, lambda desk, caller, ask: _of(desk).reports.why(caller, ask.id), weight=5),
    Operation("forecast_workload", "Tell when a workload ends, and whether it meets its deadline", READ, Named,
              shapes.WorkloadForecast, lambda desk, caller, ask: _of(desk).reports.forecast(caller, ask.id), weight=2),
    Operation("show_workload_health", "One verdict on a workload, and its reasons", READ, Named,
              shapes.HealthDocument, lambda desk, caller, ask: _of(desk).reports.health(caller, ask.id), weight=2),
    Operation("show_distribution", "Tell where the tasks of a workload run, against where they should", READ,
              ShowDistribution, shapes.WorkloadDistribution,
              lambda desk, caller, ask: _of(desk).reports.distribution(caller, *ask), weight=2),
)  # fmt: skip
