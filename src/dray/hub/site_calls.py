"""The calls of the HTTP API about the site's rules: policy, settings, queues, quotas, paces.

Handlers translate between HTTP and `SiteService`. The policy is for everybody to see, since it decides about
everybody's work; to change it, and to see the hub's own settings, takes an admin.
"""

from __future__ import annotations

from typing import Any, Protocol

from dray.core.model.policy import Policy
from dray.errors import InvalidInput
from dray.hub.http_answers import Answer
from dray.hub.http_routes import ADMIN, API, READ, Param, Request, Route
from dray.hub.service import HubService
from dray.wire import site_schemas as shapes

MAX_LINE = 1000


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


_LINE = Param("limit", "how many of the line at most", kind="whole", default=20, low=1, high=MAX_LINE)
_DRY_RUN = Param("dry_run", "only tell what would change", kind="flag", default=False)
_FORCE = Param("force", "let quotas be below what runs already", kind="flag", default=False)


def _get(path: str, name: str, about: str, handler: Any, answer: Any, **more: Any) -> Route:
    return Route(
        "GET", API + path, name, about, handler, **{"scopes": READ, "answers": {200: answer}, **more}
    )


SITE_ROUTES = (
    _get("/queues", "list_queues", "List queues with their statistics", list_queues, shapes.QueueList),
    _get("/queues/{name}", "show_queue", "Show a queue and the first of its line", show_queue, shapes.QueueDetail,
         params=(_LINE,)),
    _get("/quotas", "list_quotas", "List quotas and what is used of them", list_quotas, shapes.QuotaList),
    _get("/paces", "list_paces", "List paces and caps and how they stand", list_paces, shapes.PaceList),
    _get("/policy", "show_policy", "Show the policy in force and where each value came from", show_policy,
         shapes.PolicyAnswer),
    Route("PUT", f"{API}/policy", "apply_policy", "Replace the policy, or tell what that would change", apply_policy,
          ADMIN, params=(_DRY_RUN, _FORCE), body=Policy, answers={200: shapes.PolicyChange}, errors=(409, 413, 415)),
    _get("/config", "show_settings", "Show the hub's settings and where each came from", show_settings, shapes.Settings,
         scopes=ADMIN),
)  # fmt: skip
