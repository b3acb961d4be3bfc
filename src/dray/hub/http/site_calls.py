"""The calls of the HTTP API about the site's rules: policy, settings, queues, quotas, paces, preemptions.

Handlers translate between HTTP and `SiteService`. The policy is for everybody to see, since it decides about
everybody's work; to change it, and to see the hub's own settings, takes an admin.
"""

from __future__ import annotations

from typing import Any, Protocol

from dray.core.model.ids import ID_PATTERN
from dray.core.model.policies.policy import DAY_S, Policy
from dray.errors import InvalidInput
from dray.hub.answers.service import HubService
from dray.hub.documents.receipts import ReceiptFilter
from dray.hub.http.replies import Answer
from dray.hub.http.routes import ADMIN, API, READ, Param, Request, Route
from dray.wire.schemas import site as shapes

MAX_LINE = 1000
MAX_RECEIPTS = 200
MAX_WINDOW_S = 366 * DAY_S


class SiteDesk(Protocol):
    """What these handlers work with."""

    @property
    def service(self) -> HubService: ...


async def show_policy(desk: SiteDesk, request: Request) -> Answer:
    return Answer(await desk.service.site.policy(request.caller))


async def apply_policy(desk: SiteDesk, request: Request) -> Answer:
    asked = request.query
    if request.body is None:
        raise InvalidInput("the body must be the policy, a JSON object: {} stands for all defaults")
    return Answer(
        await desk.service.site.apply(request.caller, request.body, asked["dry_run"], asked["force"])
    )


async def show_settings(desk: SiteDesk, request: Request) -> Answer:
    return Answer(await desk.service.site.settings(request.caller))


async def list_queues(desk: SiteDesk, request: Request) -> Answer:
    return Answer(await desk.service.site.queues(request.caller))


async def show_queue(desk: SiteDesk, request: Request) -> Answer:
    return Answer(await desk.service.site.queue(request.caller, request.path["name"], request.query["limit"]))


async def list_quotas(desk: SiteDesk, request: Request) -> Answer:
    return Answer(await desk.service.site.quotas(request.caller))


async def list_paces(desk: SiteDesk, request: Request) -> Answer:
    return Answer(await desk.service.site.paces(request.caller))


async def list_preemptions(desk: SiteDesk, request: Request) -> Answer:
    asked = request.query
    wanted = ReceiptFilter(
        asked["job"], asked["user"], asked["limit"], int(asked["cursor"] or 0), asked["window_s"]
    )
    return Answer(await desk.service.site.preemptions(request.caller, wanted))


async def show_preemption(desk: SiteDesk, request: Request) -> Answer:
    return Answer(await desk.service.site.preemption(request.caller, request.path["id"]))


_RECEIPTS = (
    Param("job", "only those that this job made or suffered", default="", pattern=ID_PATTERN),
    Param("user", "only those that this user's jobs made or suffered", default=""),
    Param("limit", "how many at most", kind="whole", default=50, low=1, high=MAX_RECEIPTS),
    Param("cursor", "`next_cursor` of the page before", pattern=r"[0-9]{1,18}", default=""),
    Param("window_s", "how far back the statistics reach", kind="number", default=DAY_S, low=1, high=MAX_WINDOW_S),
)  # fmt: skip
_LINE = Param("limit", "how many of the line at most", kind="whole", default=20, low=1, high=MAX_LINE)
_DRY_RUN = Param("dry_run", "only tell what would change", kind="flag", default=False)
_FORCE = Param("force", "let quotas be below what runs already", kind="flag", default=False)


def _get(path: str, name: str, about: str, handler: Any, answer: Any, **more: Any) -> Route:
    return Route(
        "GET", API + path, name, about, handler, **{"scopes": READ, "answers": {200: answer}, **more}
    )


SITE_ROUTES = (
    _get("/queues", "list_queues", "List queues with their statistics", list_queues, shapes.QueueList, weight=2),
    _get("/queues/{name}", "show_queue", "Show a queue and the first of its line", show_queue, shapes.QueueDetail,
         params=(_LINE,), weight=2),
    _get("/quotas", "list_quotas", "List quotas and what is used of them", list_quotas, shapes.QuotaList, weight=2),
    _get("/paces", "list_paces", "List paces and caps and how they stand", list_paces, shapes.PaceList, weight=2),
    _get("/policy", "show_policy", "Show the policy in force and where each value came from", show_policy,
         shapes.PolicyAnswer),
    Route("PUT", f"{API}/policy", "apply_policy", "Replace the policy, or tell what that would change", apply_policy,
          ADMIN, params=(_DRY_RUN, _FORCE), body=Policy, answers={200: shapes.PolicyChange}, errors=(409, 413, 415),
          weight=20),
    _get("/config", "show_settings", "Show the hub's settings and where each came from", show_settings, shapes.Settings,
         scopes=ADMIN),
    _get("/preemptions", "list_preemptions", "List receipts of preemptions, newest first, with statistics",
         list_preemptions, shapes.PreemptionList, params=_RECEIPTS, weight=2),
    _get("/preemptions/{id}", "show_preemption", "Show the receipt of a preemption", show_preemption,
         shapes.PreemptionDocument),
)  # fmt: skip
