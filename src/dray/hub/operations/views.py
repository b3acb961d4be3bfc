"""Operations that show how the cluster stands, stood and will: for pages that look at all of it.

Each answer is bounded, and so is what it takes. What others do is told by the policy's `visibility`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.documents.public_feed import FeedEvent
from dray.hub.documents.records import moment
from dray.hub.operations import asks
from dray.hub.operations.operation import READ, Desk, Operation
from dray.hub.studies.desk import StudyDesk
from dray.hub.views.live import FollowViews
from dray.hub.views.machines import ListWorkers
from dray.hub.views.past.events import ListEvents
from dray.hub.views.past.failures import ListFailures
from dray.hub.views.past.timeline import AHEAD_MS, ShowTimeline
from dray.hub.views.spans import DAY_MS, read_span
from dray.hub.views.views import Views
from dray.wire.schemas import jobs as shapes
from dray.wire.schemas import studies as study_shapes
from dray.wire.schemas import views as view_shapes
from dray.wire.schemas.studies import CapacityRequest, ReplayRequest, WhatIfRequest


def _studies(desk: Desk) -> StudyDesk:
    assert desk.studies is not None  # every hub has them
    return desk.studies


def _of(desk: Desk) -> Views:
    assert desk.views is not None  # every hub has them
    return desk.views


async def follow_views(desk: Desk, caller: Caller, ask: FollowViews) -> AsyncIterator[FeedEvent | None]:
    return _of(desk).live.follow(caller, ask)


async def show_history(desk: Desk, caller: Caller, ask: asks.ShowHistory) -> Document:
    views = _of(desk)
    span = read_span(ask.since, ask.until, views.clock_ms(), DAY_MS)
    return await views.history.show(caller, ask.series, span, ask.step_s)


async def list_failures(desk: Desk, caller: Caller, ask: ListFailures) -> Document:
    views = _of(desk)
    return await views.failures.show(caller, ask, read_span(ask.since, ask.until, views.clock_ms(), DAY_MS))


async def show_timeline(desk: Desk, caller: Caller, ask: ShowTimeline) -> Document:
    views = _of(desk)
    at_ms = views.clock_ms()
    # By default a quarter ahead of what is shown of the past.
    until = ask.until or moment(at_ms + AHEAD_MS // 28) or ""
    return await views.timeline.show(caller, ask, read_span(ask.since, until, at_ms, DAY_MS // 2, AHEAD_MS))


async def list_events(desk: Desk, caller: Caller, ask: ListEvents) -> Document:
    views = _of(desk)
    return await views.events.show(caller, ask, read_span(ask.since, ask.until, views.clock_ms(), DAY_MS))


async def ask_what_if(desk: Desk, caller: Caller, ask: WhatIfRequest) -> Document:
    studies = _studies(desk)
    question = await studies.whatif.read(caller, ask)
    return studies.all.begin(caller, "whatif", ask, partial(studies.whatif.work, caller, *question))


async def replay_past(desk: Desk, caller: Caller, ask: ReplayRequest) -> Document:
    studies = _studies(desk)
    ready = await studies.replays.read_replay(ask)
    return studies.all.begin(caller, "replay", ask, partial(studies.replays.replay, caller, ready))


async def advise_capacity(desk: Desk, caller: Caller, ask: CapacityRequest) -> Document:
    studies = _studies(desk)
    ready = await studies.replays.read_capacity(ask)
    return studies.all.begin(caller, "capacity", ask, partial(studies.replays.advise, caller, ready))


async def cancel_study(desk: Desk, caller: Caller, ask: asks.Named) -> Document:
    return _studies(desk).all.cancel(caller, ask.id)


async def list_advice(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    return {"earlier": await _studies(desk).replays.judged()}


VIEWS = (
    Operation("ask_what_if", "Ask when work would start under another policy, without some workers, with more", READ,
              WhatIfRequest, study_shapes.StudyDocument, ask_what_if, weight=10),
    Operation("replay_past", "Replay what the hub remembers under other policies, or with more workers", READ,
              ReplayRequest, study_shapes.StudyDocument, replay_past, weight=10),
    Operation("advise_capacity", "Ask what one more worker of each kind would have brought", READ, CapacityRequest,
              study_shapes.StudyDocument, advise_capacity, weight=10),
    Operation("show_study", "Show how far a question is that takes a while, and its answer", READ, asks.ShowStudy,
              study_shapes.StudyDocument,
              lambda desk, caller, ask: _studies(desk).all.show(caller, ask.id, ask.wait_s)),
    Operation("cancel_study", "Call a question off that takes a while", READ, asks.Named, study_shapes.StudyDocument,
              cancel_study),
    Operation("list_advice", "List what was advised about capacity, and what became of it", READ, asks.Nothing,
              study_shapes.AdviceList, list_advice, weight=5),
    Operation("list_events", "List what happened from one moment to another", READ, ListEvents, view_shapes.EventPage,
              list_events, weight=10, paged=True),
    Operation("show_load", "Show what running tasks of a job have used, minute by minute", READ, asks.ShowLoad,
              view_shapes.LoadList, lambda desk, caller, ask: _of(desk).loads.show(caller, ask.id, ask.task),
              weight=2),
    Operation("show_timeline", "Show who had, has and gets which card when", READ, ShowTimeline, view_shapes.Timeline,
              show_timeline, weight=10, paged=True),
    Operation("list_users", "List who holds what and who waits how long", READ, asks.Nothing, view_shapes.UserList,
              lambda desk, caller, ask: _of(desk).users.show(caller), weight=5),
    Operation("count_jobs", "Count jobs by their states, and say in one sentence how they stand", READ, asks.CountJobs,
              view_shapes.JobCounts,
              lambda desk, caller, ask: _of(desk).counts.show(caller, ask.user, ask.ended_after), weight=2),
    Operation("show_history", "Show how the cluster stood, as series", READ, asks.ShowHistory, view_shapes.History,
              show_history, weight=5),
    Operation("list_failures", "List what failed, in groups with a verdict and an example each", READ, ListFailures,
              view_shapes.Failures, list_failures, weight=10),
    Operation("forecast_demand", "Foretell how many cards will be wanted at once, by kind of ask", READ, asks.Nothing,
              view_shapes.Demand, lambda desk, caller, ask: _of(desk).demand.show(), weight=20),
    Operation("compare_placements", "Say what waits would come to under several placement strategies", READ,
              asks.ComparePlacements, view_shapes.Comparison,
              lambda desk, caller, ask: _of(desk).comparison.show(ask.strategies), weight=20),
    Operation("advise_job", "Say what a job asks for and does not use, and what would let it start", READ, asks.Named,
              view_shapes.JobAdvice, lambda desk, caller, ask: _of(desk).advice.show(caller, ask.id), weight=5),
    Operation("show_cluster", "Show all workers in columns, and in one sentence how well they are used", READ,
              asks.ShowCluster, view_shapes.Cluster,
              lambda desk, caller, ask: _of(desk).cluster.show(caller, ask.group), weight=5),
    Operation("follow_views", "Follow what changes in views of the cluster, as rows, as server-sent events", READ,
              FollowViews, str, follow_views, streams="out"),
    Operation("list_workers", "List workers", READ, ListWorkers, shapes.WorkerList,
              lambda desk, caller, ask: _of(desk).machines.page(caller, ask), weight=2, paged=True),
    Operation("show_worker", "Show a worker, what it runs, and who holds which of its cards", READ, asks.Named,
              shapes.WorkerDetail, lambda desk, caller, ask: _of(desk).machines.show(caller, ask.id)),
)  # fmt: skip
