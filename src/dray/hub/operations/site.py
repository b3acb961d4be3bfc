"""Operations on the site: its workers, events, queues, quotas, paces, policy, preemptions, templates, the hub itself.

The policy is for everybody to see, since it decides about everybody's work; to change it, and to see the hub's own
settings, takes an admin.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dray.errors import Conflict, NotFound
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.documents.public_feed import RESET, FeedEvent
from dray.hub.documents.receipts import ReceiptFilter
from dray.hub.moves.answers import Wanted as WantedMoves
from dray.hub.notifications.outbox import Wanted
from dray.hub.operations import asks
from dray.hub.operations.operation import ADMIN, READ, SUBMIT, Desk, Launches, Moves, Operation
from dray.hub.views.past.events import is_wanted
from dray.wire.messages.client import IdleGpus, Usage
from dray.wire.schemas import jobs as shapes
from dray.wire.schemas import launches as launch_shapes
from dray.wire.schemas import moves as move_shapes
from dray.wire.schemas import providers as provider_shapes
from dray.wire.schemas import site as site_shapes
from dray.wire.schemas import templates as template_shapes

Feed = AsyncIterator[FeedEvent | None]


async def stream_events(desk: Desk, caller: Caller, ask: asks.FollowEvents) -> Feed:
    feed = desk.service.feed(caller, ask.after)
    return _choose(feed, ask) if ask.job or ask.worker or ask.types else feed


async def _choose(feed: Feed, ask: asks.FollowEvents) -> Feed:
    async for event in feed:
        if event is None or event.type == RESET or is_wanted(event, ask.job, ask.worker, ask.types):
            yield event


async def list_notifications(desk: Desk, caller: Caller, ask: Wanted) -> Document:
    assert desk.notifications is not None  # every hub has them
    return await desk.notifications.list(caller, ask)


async def show_metrics(desk: Desk, caller: Caller, ask: asks.Nothing) -> bytes:
    return desk.service.metrics_text()


async def remove_worker(desk: Desk, caller: Caller, ask: asks.RemoveWorker) -> Document:
    removed = await desk.service.remove_worker(caller, ask.id, ask.force)
    # It stays valid: whether the machine may come back is another question.
    return {**removed, "token": desk.tokens.made_for(ask.id) or None}


async def list_limits(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    site = desk.service.site
    return {**await site.quotas(caller), **await site.paces(caller)}


async def drain_worker(desk: Desk, caller: Caller, ask: asks.DrainWorker) -> Document:
    if ask.dry_run:
        assert desk.views is not None  # every hub has them
        return await desk.views.previews.drain(caller, ask.id, ask.reason, ask.until, ask.stop, ask.move)
    return await desk.service.drain(caller, ask.id, True, ask.reason, ask.until, ask.stop, ask.ends, ask.move)


def _moves(desk: Desk) -> Moves:
    assert desk.moves is not None  # every hub has them
    return desk.moves


async def list_hubs(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    assert desk.hubs is not None  # as above
    return await desk.hubs.list(caller)


async def show_role(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    assert desk.hubs is not None  # as above
    return await desk.hubs.status(caller)


async def resign_hub(desk: Desk, caller: Caller, ask: asks.Nothing) -> Document:
    assert desk.hubs is not None  # as above
    return await desk.hubs.resign(caller)


def _launches(desk: Desk) -> Launches:
    assert desk.launches is not None  # as above
    return desk.launches


LAUNCHES = (
    Operation("list_launches", "List launchers and the workers that they start", READ, asks.ListLaunches,
              launch_shapes.LaunchList,
              lambda desk, caller, ask: _launches(desk).list(caller, ask.launcher, ask.all),
              weight=2, errors=(NotFound,)),
    Operation("show_launch", "Show a launch", READ, asks.Named, launch_shapes.LaunchDocument,
              lambda desk, caller, ask: _launches(desk).show(caller, ask.id)),
    Operation("start_launch", "Ask a launcher for workers", ADMIN, launch_shapes.LaunchRequest,
              launch_shapes.Launched,
              lambda desk, caller, ask: _launches(desk).start(caller, ask.launcher, ask.count),
              repeat="anew", errors=(Conflict, NotFound)),
    Operation("stop_launch", "Let a launch go, by a drain where its worker is there", ADMIN, asks.Named,
              launch_shapes.LaunchDocument, lambda desk, caller, ask: _launches(desk).stop(caller, ask.id),
              repeat="same"),
)  # fmt: skip


SITE = (
    Operation("show_overview", "Show the cluster at a glance: totals, some workers, the first that wait", READ,
              asks.ShowOverview, site_shapes.Overview,
              lambda desk, caller, ask: desk.service.overview(caller, *ask), weight=2),
    Operation("drain_worker", "Give a worker no new work", ADMIN, asks.DrainWorker, shapes.WorkerDocument,
              drain_worker, repeat="same"),
    Operation("resume_worker", "Give a drained worker work again", ADMIN, asks.Named, shapes.WorkerDocument,
              lambda desk, caller, ask: desk.service.drain(caller, ask.id, False), repeat="same"),
    Operation("label_worker", "Give a worker labels, or take given ones back", ADMIN, asks.LabelWorker,
              shapes.WorkerDocument,
              lambda desk, caller, ask: desk.service.label_worker(caller, ask.id, ask.labels), repeat="same"),
    Operation("remove_worker", "Forget a worker that is gone for good", ADMIN, asks.RemoveWorker,
              shapes.RemovedWorker, remove_worker, repeat="anew", errors=(Conflict,)),
    Operation("stream_events", "Follow all that is committed, as server-sent events", READ, asks.FollowEvents, str,
              stream_events, streams="out"),
    Operation("show_hub", "Show the hub itself", READ, asks.Nothing, shapes.HubDocument,
              lambda desk, caller, ask: desk.service.hub(caller)),
    Operation("list_hubs", "List the hub that leads and those that stand by", READ, asks.Nothing,
              site_shapes.HubList, list_hubs, weight=2),
    Operation("show_role", "Show whether this hub leads or stands by, since when and why", READ, asks.Nothing,
              site_shapes.HubRole, show_role),
    Operation("resign_hub", "Hand over to a hub that stands by", ADMIN, asks.Nothing, site_shapes.Handover,
              resign_hub, repeat="anew", errors=(Conflict,)),
    Operation("list_queues", "List queues with their statistics", READ, asks.Nothing, site_shapes.QueueList,
              lambda desk, caller, ask: desk.service.site.queues(caller), weight=2),
    Operation("show_queue", "Show a queue and the first of its line", READ, asks.ShowQueue, site_shapes.QueueDetail,
              lambda desk, caller, ask: desk.service.site.queue(caller, ask.name, ask.limit), weight=2),
    Operation("list_quotas", "List quotas and what is used of them", READ, asks.Nothing, site_shapes.QuotaList,
              lambda desk, caller, ask: desk.service.site.quotas(caller), weight=2),
    Operation("list_paces", "List paces and caps and how they stand", READ, asks.Nothing, site_shapes.PaceList,
              lambda desk, caller, ask: desk.service.site.paces(caller), weight=2),
    Operation("list_limits", "List quotas, paces and caps, and how they stand", READ, asks.Nothing,
              site_shapes.LimitList, list_limits, weight=4),
    Operation("show_policy", "Show the policy in force and where each value came from", READ, asks.Nothing,
              site_shapes.PolicyAnswer, lambda desk, caller, ask: desk.service.site.policy(caller)),
    Operation("apply_policy", "Replace the policy, or tell what that would change", ADMIN, asks.ApplyPolicy,
              site_shapes.PolicyChange, lambda desk, caller, ask: desk.service.site.apply(caller, *ask),
              weight=20, repeat="same", errors=(Conflict,)),
    Operation("show_settings", "Show the hub's settings and where each came from", ADMIN, asks.Nothing,
              site_shapes.Settings, lambda desk, caller, ask: desk.service.site.settings(caller)),
    Operation("list_providers", "List providers: prices, health and what was measured", READ, asks.Nothing,
              provider_shapes.ProviderList, lambda desk, caller, ask: desk.service.site.providers(caller), weight=2),
    Operation("show_provider", "Show a provider, its kinds of cards and how fast work runs there", READ,
              asks.NamedSo, provider_shapes.ProviderDetail,
              lambda desk, caller, ask: desk.service.site.provider(caller, ask.name), weight=2,
              errors=(NotFound,)),
    Operation("list_preemptions", "List receipts of preemptions, newest first, with statistics", READ, ReceiptFilter,
              site_shapes.PreemptionList, lambda desk, caller, ask: desk.service.site.preemptions(caller, ask),
              weight=2, paged=True),
    Operation("show_preemption", "Show the receipt of a preemption", READ, asks.Named, site_shapes.PreemptionDocument,
              lambda desk, caller, ask: desk.service.site.preemption(caller, ask.id)),
    Operation("list_alarms", "List what is wrong now, by the policy's alarms", READ, asks.Nothing,
              site_shapes.AlarmList, lambda desk, caller, ask: desk.service.site.alarms(caller)),
    Operation("show_usage", "Show what was asked for, held and used of cards and cores", READ, Usage,
              site_shapes.UsageAnswer, lambda desk, caller, ask: desk.service.site.usage(caller, ask), weight=20),
    Operation("list_idle", "List cards that are held and idle now", READ, IdleGpus, site_shapes.IdleList,
              lambda desk, caller, ask: desk.service.site.idle(caller, ask.limit), weight=2),
    Operation("list_notifications", "List who was told of what, newest first", READ, Wanted,
              site_shapes.NotificationList, list_notifications, weight=2, paged=True),
    Operation("examine_hub", "Check that the hub's state holds together", ADMIN, asks.Nothing, shapes.Doctor,
              lambda desk, caller, ask: desk.service.doctor(caller), weight=20),
    Operation("list_audit", "List who changed what", ADMIN, asks.ListAudit, shapes.AuditList,
              lambda desk, caller, ask: desk.service.audit(caller, ask.limit), weight=2),
    Operation("show_metrics", "Metrics in the text form of Prometheus", READ, asks.Nothing, str, show_metrics,
              weight=2, needs_ready=False),
)  # fmt: skip

MOVES = (
    Operation("move_job", "Move what runs of a job to another worker", SUBMIT, asks.MoveJob, move_shapes.OrderedMoves,
              lambda desk, caller, ask: _moves(desk).order(caller, *ask), weight=4, repeat="anew",
              errors=(Conflict, NotFound)),
    Operation("list_moves", "List moves, newest first", READ, WantedMoves, move_shapes.MoveList,
              lambda desk, caller, ask: _moves(desk).list(caller, ask), weight=2, paged=True),
    Operation("show_move", "Show how far a move is, or what it came to", READ, asks.Named, move_shapes.MoveDocument,
              lambda desk, caller, ask: _moves(desk).show(caller, ask.id), errors=(NotFound,)),
    Operation("cancel_move", "Call a move off for which nobody was asked to stop yet", SUBMIT, asks.Named,
              move_shapes.MoveDocument, lambda desk, caller, ask: _moves(desk).cancel(caller, ask.id), repeat="anew",
              errors=(Conflict, NotFound)),
    Operation("plan_rebalance", "Tell what would be better off elsewhere, and what would be moved", ADMIN,
              asks.PlanRebalance, move_shapes.RebalancePlan,
              lambda desk, caller, ask: _moves(desk).plan(caller, ask.cause), weight=20),
    Operation("start_rebalance", "Carry out a plan that was looked at", ADMIN, asks.StartRebalance,
              move_shapes.OrderedMoves, lambda desk, caller, ask: _moves(desk).start(caller, *ask), weight=20,
              repeat="anew", errors=(Conflict,)),
    Operation("stop_rebalance", "Call off what was decided and for which nobody was asked to stop yet", ADMIN,
              asks.Nothing, move_shapes.OrderedMoves, lambda desk, caller, ask: _moves(desk).stop(caller),
              repeat="same"),
    Operation("show_rebalance", "Show whether work is moved by itself, and what moves have come to", READ,
              asks.Nothing, move_shapes.RebalanceStanding,
              lambda desk, caller, ask: _moves(desk).standing(caller), weight=2),
)  # fmt: skip

TEMPLATES = (
    Operation("list_templates", "List templates", READ, asks.Nothing, template_shapes.TemplateList,
              lambda desk, caller, ask: desk.service.templates.list(caller), weight=2),
    Operation("show_template", "Show a template with its parameters", READ, asks.ShowTemplate,
              template_shapes.TemplateDocument,
              lambda desk, caller, ask: desk.service.templates.show(caller, ask.spelled)),
    Operation("list_template_versions", "List the versions of a template, newest first", READ, asks.NamedSo,
              template_shapes.TemplateHistory,
              lambda desk, caller, ask: desk.service.templates.history(caller, ask.name)),
    Operation("render_template", "Show the job that a template and values make; nothing is submitted", READ,
              asks.RenderTemplate, template_shapes.RenderedTemplate,
              lambda desk, caller, ask: desk.service.templates.render(caller, ask.template.spelled, ask.params)),
    Operation("add_template", "Add a template, or one more version of it", ADMIN, asks.AddTemplate,
              template_shapes.AddedTemplate, lambda desk, caller, ask: desk.service.templates.add(caller, ask.document),
              weight=2, repeat="same", errors=(Conflict,)),
    Operation("remove_template", "Remove a template; jobs made by it go on", ADMIN, asks.NamedSo,
              template_shapes.RemovedTemplate,
              lambda desk, caller, ask: desk.service.templates.remove(caller, ask.name),
              repeat="same", errors=(Conflict,)),
)  # fmt: skip
