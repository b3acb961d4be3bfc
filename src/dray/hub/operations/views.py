"""Operations that show how the cluster stands, stood and will: for pages that look at all of it.

Each answer is bounded, and so is what it takes. What others do is told by the policy's `visibility`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.documents.public_feed import FeedEvent
from dray.hub.documents.records import moment
from dray.hub.operations import asks
from dray.hub.operations.operation import READ, Desk, Operation
from dray.hub.views.live import FollowViews
from dray.hub.views.machines import ListWorkers
from dray.hub.views.past.events import ListEvents
from dray.hub.views.past.failures import ListFailures
from dray.hub.views.past.timeline import AHEAD_MS, ShowTimeline
from dray.hub.views.spans import DAY_MS, read_span
from dray.hub.views.views import Views
from dray.wire.schemas import jobs as shapes
from dray.wire.schemas import views as view_shapes


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


VIEWS = (
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
