"""How views of the cluster are asked for over HTTP: routes, parameters, and what they make of a request."""

from __future__ import annotations

import re
import time
from typing import Any

from dray.core.model.ids import ID_PATTERN
from dray.core.model.labels import LABEL_NAME
from dray.core.model.records.records import JobState
from dray.errors import InvalidInput, Problem
from dray.hub.answers.pages import read_cursor
from dray.hub.aside.comparing import COMPARED
from dray.hub.http.bodies import read_struct
from dray.hub.http.replies import Answer
from dray.hub.http.routes import API, Param, Request, Route
from dray.hub.http.streams import Stream, feed_lines
from dray.hub.operations import asks
from dray.hub.operations.table import OPERATIONS
from dray.hub.store.base import JobFilter
from dray.hub.views.board import STATES
from dray.hub.views.live import FollowViews, read_views
from dray.hub.views.machines import SORTS, ListWorkers
from dray.hub.views.past.events import ListEvents
from dray.hub.views.past.failures import KEYS, ListFailures
from dray.hub.views.past.history import SERIES
from dray.hub.views.past.timeline import ShowTimeline
from dray.hub.views.spans import read_moment
from dray.wire.schemas.studies import CapacityRequest, ReplayRequest, WhatIfRequest

EVENT_ID = r"[0-9]{1,18}\.[0-9]{1,9}"
LABEL = r"[^=\x00-\x1f\x7f]+=[^\x00-\x1f\x7f]*"
_BACKENDS = ("cpu", "nvidia", "metal", "vulkan")


def read_after(request: Request) -> str:
    """After which event a reader goes on."""
    # What a reader saw last outranks where it first asked to begin: browsers repeat the query when they reconnect.
    after = request.headers.get(b"last-event-id", b"").decode("latin-1") or request.query["since"]
    if after and re.fullmatch(EVENT_ID, after) is None:
        what = f"must be the id of an event, like 1024.3, got {after[:64]!r}"
        raise InvalidInput(f"Last-Event-ID {what}", [Problem("Last-Event-ID", what)])
    return str(after)


def write_events(events: Any) -> Stream:
    """Events as they come."""
    return Stream(feed_lines(events), "text/event-stream", keep_alive=b": keep-alive\n\n")


def read_label(text: str) -> tuple[str, str]:
    """A label, `key=value`."""
    name, _, value = text.partition("=")
    return name, value


def _read_workers(request: Request) -> ListWorkers:
    asked = dict(request.query)
    states, labels = tuple(dict.fromkeys(asked.pop("state"))), frozenset(map(read_label, asked.pop("label")))
    return ListWorkers(states=states, labels=labels, **asked)


def _read_live(request: Request) -> FollowViews:
    texts = (part for text in request.query["views"] for part in text.split(","))
    return read_views(tuple(texts), read_after(request))


def _read_filter(request: Request) -> JobFilter:
    asked, at_ms = request.query, round(time.time() * 1000)
    ended_ms, seq = read_cursor(asked["cursor"], asked["sort"])
    moments: dict[str, Any] = {
        f"{name}_ms": read_moment(name, asked[name], at_ms)
        for name in ("submitted_after", "submitted_before", "ended_after", "ended_before")
        if asked[name]
    }
    named = {
        name: asked[name]
        for name in ("user", "queue", "name", "workload", "worker", "exit_class", "q", "sort")
    }
    return JobFilter(
        states=tuple(dict.fromkeys(asked["state"])),
        labels=tuple(read_label(text) for text in asked["label"]),
        before_seq=seq,
        before_ended_ms=ended_ms,
        limit=asked["limit"],
        count=asked["count"],
        **named,
        **moments,
    )


def _read_history(request: Request) -> asks.ShowHistory:
    asked = request.query
    series = tuple(dict.fromkeys(part for text in asked["series"] for part in text.split(",")))
    return asks.ShowHistory(series, asked["from"], asked["to"], asked["step_s"])


def _read_failures(request: Request) -> ListFailures:
    asked = request.query
    return ListFailures(asked["from"], asked["to"], tuple(dict.fromkeys(asked["by"])), asked["limit"])


def _read_timeline(request: Request) -> ShowTimeline:
    asked = dict(request.query)
    since, until, workers = asked.pop("from"), asked.pop("to"), asked.pop("worker")
    return ShowTimeline(since, until, tuple(dict.fromkeys(workers)), **asked)


def _read_events(request: Request) -> ListEvents:
    asked = dict(request.query)
    since, until, types = asked.pop("from"), asked.pop("to"), tuple(dict.fromkeys(asked.pop("type")))
    return ListEvents(since, until, types=types, **asked)


SINCE = Param("since", "begin after this event id", pattern=EVENT_ID, default="")
_WORKERS = (
    Param("backend", "only workers with this backend", default="", choices=_BACKENDS),
    Param("all", "also those that have been away for a day", kind="flag", default=False),
    Param("limit", "how many at most; all of them by default", kind="whole", low=1, high=1000),
    Param("cursor", "`next_cursor` of the page before, which goes with the same filters and order",
          pattern=r"[A-Za-z0-9_-]{1,512}", default="", max_length=512),
    Param("state", "only these states; may repeat or hold commas", choices=STATES, many=True),
    Param("kind", "only of this kind: a type of GPU, such as H100, with how many (`H100 ×8`), or cpu", default=""),
    Param("label", "only workers with this label, `key=value`; may repeat", pattern=LABEL, many=True),
    Param("q", "only workers whose name or host name has this in it", default=""),
    Param("sort", "in which order; with - before it the other way round", default="name",
          choices=(*SORTS, *(f"-{name}" for name in SORTS))),
)  # fmt: skip
_STATES = tuple(state.value for state in JobState)
STATE = Param("state", "only these states; may repeat or hold commas", choices=_STATES, many=True)
LIMIT = Param("limit", "how many at most", kind="whole", default=100, low=1, high=1000)
CURSOR = Param("cursor", "`next_cursor` of the page before", pattern=r"[0-9]{1,18}", default="")
_WHEN = "a moment such as 2030-01-31T18:00:00Z, or how long ago, such as 6h"
_FROM = Param("from", f"since when: {_WHEN}", default="")
_TO = Param("to", f"until when: {_WHEN}; now by default", default="")
_JOBS = (
    STATE,
    Param("user", "only jobs of this user", default=""),
    Param("queue", "only jobs of this queue", default=""),
    Param("name", "only jobs of this name", default=""),
    Param("workload", "only jobs of this workload", default="", pattern=ID_PATTERN),
    Param("label", "only jobs with this label, `key=value`; may repeat", pattern=LABEL, many=True),
    Param("q", "only jobs whose name or id has this in it", default=""),
    Param("worker", "only jobs of which a try was on this worker", default=""),
    Param("exit_class", "only jobs of which a try ended so, such as oom, time_limit, lost", default=""),
    Param("submitted_after", f"only those submitted since then: {_WHEN}", default=""),
    Param("submitted_before", "only those submitted before", default=""),
    Param("ended_after", "only those that have ended since then", default=""),
    Param("ended_before", "only those that ended before", default=""),
    Param("sort", "by what, the newest first; `ended` lists those alone that have", default="submitted",
          choices=("submitted", "ended")),
    LIMIT,
    Param("cursor", "`next_cursor` of the page before, which goes with the same order",
          pattern=r"[0-9]{1,18}(\.[0-9]{1,18})?", default=""),
    Param("count", "say how many there are in all", kind="flag", default=False),
)  # fmt: skip
_COUNTED = (
    Param("user", "only jobs of this user", default=""),
    Param("ended_after", f"count those that ended since then: {_WHEN}; all by default", default=""),
)
_HISTORY = (
    Param("series", "which; all by default: " + ", ".join(SERIES), many=True, max_length=1024),
    _FROM,
    _TO,
    Param("step_s", "how long one value stands for; whole minutes, as few as fit by default", kind="whole", default=0,
          low=0, high=31 * 86400),
)  # fmt: skip
_FAILURES = (
    _FROM,
    _TO,
    Param("by", "what failures of a group have in common beside the verdict; error and job by default", choices=KEYS,
          many=True),
    Param("limit", "how many groups at most", kind="whole", default=50, low=1, high=200),
)  # fmt: skip
EVENTS = (
    Param("job", "only of this job", default="", pattern=ID_PATTERN),
    Param("worker", "only of this worker", default=""),
    Param("type", "only of this type, such as task_ended; may repeat", many=True, pattern=r"[a-z_]{1,64}"),
)  # fmt: skip
_EVENT_PAGE = (
    _FROM,
    _TO,
    *EVENTS,
    LIMIT,
    Param("cursor", "`next_cursor` of the page before", pattern=EVENT_ID, default=""),
)  # fmt: skip
_LOAD = (Param("task", "only this task", kind="whole", low=0, high=10**9),)
_TIMELINE = (
    _FROM,
    Param("to", f"until when: {_WHEN}; a week ahead at most, six hours ahead by default", default=""),
    Param("worker", "only these workers; may repeat", many=True),
    Param("kind", "only workers of this kind: a type of GPU, with how many or without, or cpu", default=""),
    Param("job", "only workers that this job is or was on", default="", pattern=ID_PATTERN),
    Param("limit", "how many workers at most", kind="whole", default=20, low=1, high=64),
    Param("cursor", "`next_cursor` of the page before", default=""),
)  # fmt: skip
_GROUP = Param("group", "the label by which they are grouped too", default="", pattern=LABEL_NAME)
_VIEWS = Param("views", "what to hear of: cluster, queues, jobs, or job:ID for one; all by default; may repeat",
               many=True, max_length=4096)  # fmt: skip


_COMPARED = Param("strategies", "which; may repeat or hold commas", choices=COMPARED, many=True)
USUAL = ("greedy", "foresight", "min_cost", "genetic")


def _api(method: str, path: str, name: str, **more: Any) -> Route:
    return Route(method, API + path, OPERATIONS[name], **more)


_STUDY_WAIT = Param("wait_s", "wait so long for its end", kind="number", default=0, low=0, high=60)


def _study(path: str, name: str, kind: Any) -> Route:
    read = lambda request: read_struct(kind, request.body)  # noqa: E731 - one line for each of three
    return _api(
        "POST", path, name, body=kind, body_optional=True, read=read, statuses=(201,), write=_write_begun
    )


def _write_begun(document: Any) -> Answer:
    return Answer(document, 201)


VIEW_ROUTES: tuple[Route, ...] = (
    _study("/whatif", "ask_what_if", WhatIfRequest),
    _study("/sim", "replay_past", ReplayRequest),
    _study("/capacity", "advise_capacity", CapacityRequest),
    _api("GET", "/capacity", "list_advice"),
    _api("GET", "/studies/{id}", "show_study", params=(_STUDY_WAIT,), waits="wait_s"),
    _api("DELETE", "/studies/{id}", "cancel_study"),
    _api("GET", "/jobs", "list_jobs", params=_JOBS, read=_read_filter),
    _api("GET", "/jobs:counts", "count_jobs", params=_COUNTED),
    _api("GET", "/events:page", "list_events", params=_EVENT_PAGE, read=_read_events),
    _api("GET", "/jobs/{id}/load", "show_load", params=_LOAD),
    _api("GET", "/timeline", "show_timeline", params=_TIMELINE, read=_read_timeline),
    _api("GET", "/users", "list_users"),
    _api("GET", "/history", "show_history", params=_HISTORY, read=_read_history),
    _api("GET", "/failures", "list_failures", params=_FAILURES, read=_read_failures),
    _api("GET", "/advice/demand", "forecast_demand"),
    _api("GET", "/advice/placements", "compare_placements", params=(_COMPARED,),
         read=lambda request: asks.ComparePlacements(tuple(dict.fromkeys(request.query["strategies"])) or USUAL)),
    _api("GET", "/jobs/{id}/advice", "advise_job"),
    _api("GET", "/cluster", "show_cluster", params=(_GROUP,)),
    _api("GET", "/live", "follow_views", params=(_VIEWS, SINCE), headers=("Last-Event-ID",), read=_read_live,
         write=write_events, media="text/event-stream"),
    _api("GET", "/workers", "list_workers", params=_WORKERS, read=_read_workers),
    _api("GET", "/workers/{id}", "show_worker"),
)  # fmt: skip
