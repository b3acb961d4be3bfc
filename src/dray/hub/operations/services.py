"""Operations on services: to list and show them, to find where they answer, and to scale, update,
restart and stop them."""

from __future__ import annotations

from dray.errors import Conflict, NoSpace
from dray.hub.access.caller import Caller
from dray.hub.answers.service import Document
from dray.hub.operations import asks
from dray.hub.operations.operation import REACH, READ, SUBMIT, Desk, Operation, Services
from dray.wire.messages import client as wire
from dray.wire.schemas import services as shapes


def _of(desk: Desk) -> Services:
    assert desk.services is not None  # every front that names these operations has them
    return desk.services


async def _update(desk: Desk, caller: Caller, ask: wire.UpdateService) -> Document:
    return await _of(desk).update(caller, ask.name, ask.changes, ask.whole)


async def _restart(desk: Desk, caller: Caller, ask: asks.RestartService) -> Document:
    return await _of(desk).restart(caller, ask.name, ask.replica, ask.at_once)


async def _stop(desk: Desk, caller: Caller, ask: asks.StopService) -> Document:
    return await _of(desk).stop(caller, ask.name, ask.grace_s)


SERVICES = (
    Operation("list_services", "List the services that run", READ, asks.Nothing, shapes.ServiceList,
              lambda desk, caller, ask: _of(desk).list(caller), weight=2),
    Operation("show_service", "Show a service and its replicas", READ, wire.ShowService, shapes.ServiceDocument,
              lambda desk, caller, ask: _of(desk).show(caller, ask.name)),
    Operation("list_endpoints", "List where the ready replicas of a service answer", REACH, wire.Endpoints,
              shapes.EndpointList, lambda desk, caller, ask: _of(desk).endpoints(caller, ask.name), errors=(Conflict,)),
    Operation("link_service", "Make a link by which a browser gets in to a service, once", SUBMIT, asks.NamedService,
              shapes.ServiceLink, lambda desk, caller, ask: _of(desk).link(caller, ask.name), repeat="anew",
              errors=(Conflict,)),
    Operation("scale_service", "Give a service another number of replicas", SUBMIT, wire.Scale,
              shapes.ServiceDocument, lambda desk, caller, ask: _of(desk).scale(caller, ask.name, ask.replicas),
              repeat="same", errors=(Conflict, NoSpace)),
    Operation("share_service", "Let users reach a service, or no longer", SUBMIT, wire.Share, shapes.ServiceDocument,
              lambda desk, caller, ask: _of(desk).share(caller, ask.name, ask.add, ask.remove), repeat="same",
              errors=(Conflict, NoSpace)),
    Operation("update_service", "Replace the replicas of a service by those of a new revision of its spec", SUBMIT,
              wire.UpdateService, shapes.ServiceDocument, _update, repeat="same", errors=(Conflict, NoSpace)),
    Operation("rollback_service", "Give an update up, or go back to an earlier revision", SUBMIT,
              wire.RollbackService, shapes.ServiceDocument,
              lambda desk, caller, ask: _of(desk).rollback(caller, ask.name, ask.to), repeat="anew",
              errors=(Conflict,)),
    Operation("restart_service", "Restart the replicas of a service, or one", SUBMIT, asks.RestartService,
              shapes.ServiceDocument, _restart, repeat="anew", errors=(Conflict, NoSpace)),
    Operation("stop_service", "Stop a service", SUBMIT, asks.StopService, shapes.StoppedService, _stop,
              repeat="same", errors=(Conflict,)),
)  # fmt: skip
