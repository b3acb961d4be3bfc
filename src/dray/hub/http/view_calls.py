"""How views of the cluster are asked for over HTTP: routes, parameters, and what they make of a request."""

from __future__ import annotations

import re
from typing import Any

from dray.core.model.labels import LABEL_NAME
from dray.errors import InvalidInput, Problem
from dray.hub.http.routes import API, Param, Request, Route
from dray.hub.http.streams import Stream, feed_lines
from dray.hub.operations.table import OPERATIONS
from dray.hub.views.board import STATES
from dray.hub.views.live import FollowViews, read_views
from dray.hub.views.machines import SORTS, ListWorkers

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
_GROUP = Param("group", "the label by which they are grouped too", default="", pattern=LABEL_NAME)
_VIEWS = Param("views", "what to hear of: cluster, queues, jobs, or job:ID for one; all by default; may repeat",
               many=True, max_length=4096)  # fmt: skip


def _api(method: str, path: str, name: str, **more: Any) -> Route:
    return Route(method, API + path, OPERATIONS[name], **more)


VIEW_ROUTES: tuple[Route, ...] = (
    _api("GET", "/cluster", "show_cluster", params=(_GROUP,)),
    _api("GET", "/live", "follow_views", params=(_VIEWS, SINCE), headers=("Last-Event-ID",), read=_read_live,
         write=write_events, media="text/event-stream"),
    _api("GET", "/workers", "list_workers", params=_WORKERS, read=_read_workers),
    _api("GET", "/workers/{id}", "show_worker"),
)  # fmt: skip
