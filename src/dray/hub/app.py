"""The hub as a process: started, kept clean, reloaded, stopped. What it is made of, `hub.assembly` puts together.

A turn that cannot be decided, or a commit that fails, ends the engine and
its memory: the hub reloads from disk in the same process, behind the same socket, and everybody connects anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

from dray.config import HubConfig
from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.events import EpochStarted
from dray.core.lifecycle.state.timings import Rules
from dray.descriptors import raise_file_limit
from dray.errors import DrayError, EpochLost, NoSpace, StoreAway, StoreGone
from dray.hub.access.caller import Caller
from dray.hub.access.certificate_watch import CertificateWatch
from dray.hub.access.certificates import (
    check_bind,
    fingerprint,
    is_loopback,
)
from dray.hub.access.tokens import ensure_first_token, rewrite_private
from dray.hub.assembly import (
    Ground,
    Hub,
    make_grpc,
    make_links,
    make_relay,
    make_server,
    tell_url,
    tend_certificate,
    tls_files,
    wire_hub,
)
from dray.hub.decisions.policy import PolicyFile, find_policy_file, read_brought, settle_at_start
from dray.hub.documents.records import check_readiness
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.engine.failed_turns import Setbacks
from dray.hub.engine.fault_reports import Reports
from dray.hub.engine.garbage import leave_out_what_is_there, take_over_collector
from dray.hub.engine.told_turns import tell_lost
from dray.hub.engine.turns import Decision, TurnFailed
from dray.hub.housekeeping import bring_policy, keep_house, tell_set_aside, watch_store
from dray.hub.http.front import Front
from dray.hub.http.server import HttpServer, bind, bind_local
from dray.hub.leadership import Opened, ToldToEnd, open_store
from dray.hub.logs import set_up_logging
from dray.hub.proxy.addresses import choose_domain
from dray.hub.proxy.doors import open_doors
from dray.hub.roles import Resigned, Role
from dray.hub.store.sqlite.errors import tell_unusable
from dray.hub.workers.session import GOING_AWAY
from dray.logfile import make_handler
from dray.presence import describe_self, hold, keep_private
from dray.settings_file import list_ignored
from dray.wire.reach.dialling import SOCKET_NAME

RECALLED_RUNS = 2_000
# "Service restart": whoever hears it dials again.
RELOADING = 1012
NO_SPACE_S = 1.0
GRPC_STOP_S = 1.0
logger = logging.getLogger("dray.hub")


def run_hub(config: HubConfig) -> int:
    """Run a hub until it is told to stop; 0 after a clean end, 1 with a message when it could not start or go on."""
    try:
        set_up_logging(
            config.log_json, make_handler(config.log_file, config.log_file_bytes, config.log_files)
        )
    except OSError as fault:
        print(f"dray hub: the log cannot be written to {config.log_file}: {fault.strerror}", file=sys.stderr)
        return 1
    try:
        with hold(config.home, "hub"):
            for text in [*keep_private(config.home), *list_ignored(config.home)]:
                logger.warning("%s", text)
            with contextlib.suppress(ImportError):
                import uvloop

                uvloop.install()
            take_over_collector()
            raise_file_limit()
            return asyncio.run(_serve(config))
    except DrayError as fault:
        print(f"dray hub: {fault.message}", file=sys.stderr)
        for problem in fault.problems:
            print(f"  {problem.where}: {problem.what}", file=sys.stderr)
        return 1
    except OSError as fault:
        print(f"dray hub: {tell_unusable(config.home, fault)}", file=sys.stderr)
        return 1


async def start_hub(config: HubConfig, told: asyncio.Event | None = None) -> Hub:
    """Open the store, recover, listen. Everything that can go wrong does so before the first answer."""
    tls = tls_files(config)
    check_bind(config.host, tls is not None)
    bound = bind(config.host, config.port)
    setbacks = Setbacks(Reports(config.home / "reports"))
    certificate = CertificateWatch(tls) if tls is not None else None
    front, links = Front(), make_links(config)
    relay = make_relay(config, front, links) if links is not None else None
    front.gateway, front.relay = links.gateway if links is not None else None, relay
    grpc = make_grpc(config, tls, relay, links)
    ground = Ground(
        bound, bind_local(config.home), front, setbacks, role := Role(), certificate, grpc, links, relay
    )
    server = make_server(config, ground, tls)
    tend_certificate(ground, server)
    role.url, ground.front.role = tell_url(config, server.url), role.describe
    role.served = relay.count if relay is not None else role.served
    ground = ground._replace(note_address=_make_note(config, ground, server))
    if config.store:
        # Until this hub leads, which may take long, it says who does.
        await server.start()
        if grpc is not None:
            await grpc.start()
    return await _begin(config, ground, server, told or asyncio.Event())


async def reload_hub(hub: Hub, told: asyncio.Event) -> Hub:
    """Let a memory go that is not to be used again, and come back from disk at the same address; not if told to end."""
    why = "the hub reloads: ask again in a second"
    hub.ground.front.withdraw(why)
    if hub.ground.grpc is not None:
        hub.ground.grpc.withdraw(why)
    hub.answers.ready = False
    hub.feed.close()
    hub.views.live.close()
    hub.api.close()
    if hub.grpc is not None:
        hub.grpc.close()
    hub.sessions.closed_all(RELOADING, why)
    if hub.gateways is not None:
        hub.gateways.close(why)
    hub.passages.close(RELOADING, why)
    for channel in list(hub.channels.open):
        channel.close(RELOADING, why)
    await hub.outputs.close()
    await hub.writer.close()
    hub.store.close(clean=False)
    while True:
        try:
            return await _begin(hub.config, hub.ground, hub.server, told, again=True)
        except (NoSpace, StoreAway) as fault:
            # Whoever frees space, or starts the database, need not start the hub as well.
            hub.ground.front.withdraw(f"the hub waits: {fault.message}")
            logger.error("the hub cannot reload yet: %s", fault.message)
            if await _is_told(told, NO_SPACE_S):
                raise


async def _is_told(told: asyncio.Event, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(told.wait(), within_s)
    return told.is_set()


async def _begin(
    config: HubConfig, ground: Ground, server: HttpServer, told: asyncio.Event, again: bool = False
) -> Hub:
    policy_file = find_policy_file(config.home)
    rules = _rules(config)
    opened = await open_store(config, rules, ground, ground.role.url, told, again)
    try:
        return await _go_on(config, rules, ground, server, opened, policy_file, again)
    except BaseException:
        opened.store.close(clean=False)
        raise


async def _go_on(
    config: HubConfig,
    rules: Rules,
    ground: Ground,
    server: HttpServer,
    opened: Opened,
    policy_file: PolicyFile | None,
    again: bool,
) -> Hub:
    reports, store = ground.setbacks.reports, opened.store
    # Before anything is read: what another hub still commits under an older epoch must be in what is read, or nowhere.
    epoch = store.begin_epoch()
    recovered = opened.recover(rules)
    if store.lost is not None:
        reports.file("lost turns", tell_lost(store.lost))
    for what, error in recovered.faults:
        reports.file(
            "stored value", f"{what} could not be taken in at the start: it was set aside", error=error
        )
    state, seq = recovered.state, max(recovered.seq, store.position().seq)
    brought = read_brought(config.home) if store.remote is not None else None
    policy_change = settle_at_start(state, policy_file, brought)
    clock = HubClock(recovered, epoch)
    now = clock.read()
    store.save_clock(now.now_ms, now.at_ms, clock.base)
    # With a new key: a hub that was put back to an earlier time counts again what it counted then, for other work.
    wake_up(state, now, secrets.token_bytes(32), store.recent_runs(RECALLED_RUNS))
    # What was kept warm has been left out already, and so has what was there before it.
    leave_out_what_is_there(again=again and opened.follower is None)
    ensure_first_token(config.home, getpass.getuser(), store, now.at_ms, is_new_home=brought == "")
    hub = wire_hub(config, store, state, seq, clock, ground, server)
    tell_set_aside(store, reports)
    hub.writer.start()
    hub.outputs.start()
    hub.feed.start(seq)
    _fold_epoch(hub.engine, epoch)
    if brought is not None:
        bring_policy(hub.engine, config.home, policy_change, policy_file)
    elif policy_change is not None:
        hub.engine.post(policy_change)
    if not server.started:
        await server.start()
    hub.answers.checks += [check_readiness, hub.solver.check]
    hub.answers.ready = True
    ground.role.lead(ground.role.url, epoch, store.remote)
    ground.role.sessions = hub.sessions.count_near
    ground.front.open(open_doors(hub.api, hub.passages, choose_domain(config.proxy_domain, config.host)))
    if ground.grpc is not None and hub.grpc is not None:
        ground.grpc.open(hub.grpc)
        await ground.grpc.start()
    if ground.links is not None and hub.gateways is not None:
        ground.links.lead(hub.gateways)
    return hub


def _fold_epoch(engine: Engine, epoch: int) -> None:
    engine.post(lambda state, clock: Decision([EpochStarted(epoch)]))


async def stop_hub(hub: Hub) -> None:
    """Drain answers, commit, close sockets with 1001; tasks keep running."""
    hub.answers.ready = False
    hub.feed.close()
    hub.views.live.close()
    hub.api.close()
    if hub.grpc is not None:
        hub.grpc.close()
    hub.sessions.closed_all(GOING_AWAY, "the hub is stopping")
    if hub.gateways is not None:
        hub.gateways.close("the hub is stopping")
    if hub.ground.links is not None:
        hub.ground.links.gateway.close_all(GOING_AWAY, "the hub is stopping")
    hub.passages.close(GOING_AWAY, "the hub is stopping")
    await hub.channels.stop(GOING_AWAY, "the hub is stopping")
    if hub.ground.grpc is not None:
        await hub.ground.grpc.stop(GRPC_STOP_S)
    await hub.server.stop()
    hub.engine.stop()


async def _serve(config: HubConfig) -> int:
    told = asyncio.Event()
    if config.store:
        # One that stands by ends when it is told to, like one that leads; others start so soon that they just die.
        _listen(told)
    try:
        hub = await start_hub(config, told)
        _listen(told)
        failure = await _live(hub, told, _announce)
        while failure is not None and _may_go_on(hub, failure) and not (config.store and told.is_set()):
            hub = await reload_hub(hub, told)
            failure = await _live(hub, told, _note_address)
    except ToldToEnd:
        return 0
    finally:
        for name in ("hub.json", SOCKET_NAME):
            (config.home / name).unlink(missing_ok=True)
    if failure is None:
        return 0
    logger.error("the engine stopped: %s", failure, exc_info=failure)
    print(f"dray hub: stopped: {failure}", file=sys.stderr, flush=True)
    if isinstance(failure, StoreGone):
        # Closing the connections would copy this hub's log into, and over, files that are somebody else's by now.
        os._exit(1)
    await hub.outputs.close()
    await hub.writer.close()
    hub.store.close(clean=False)
    return 1


def _listen(told: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)


async def _live(
    hub: Hub, told: asyncio.Event, announce: Callable[[Hub], Awaitable[None]]
) -> BaseException | None:
    """Run one engine until it is told to stop, or fails; gives the failure."""
    engine = asyncio.create_task(hub.engine.run())
    sides = [
        asyncio.create_task(keep_house(hub.config, hub.engine, hub.writer, hub.outputs, hub.blobs)),
        asyncio.create_task(hub.answers.forecasts.run()),
        asyncio.create_task(hub.solver.run()),
        asyncio.create_task(hub.notifier.run()),
        asyncio.create_task(hub.views.history.run()),
        asyncio.create_task(hub.studies.all.run()),
        asyncio.create_task(hub.alarms.run()),
        asyncio.create_task(hub.launch_desk.run()),
        asyncio.create_task(watch_store(hub.engine, hub.store, hub.ground.setbacks.reports)),
    ]
    if (certificate := hub.ground.certificate) is not None:
        sides.append(asyncio.create_task(certificate.run(lambda: _note_address(hub))))
    if hub.mirror is not None:
        hub.mirror.start()
    await announce(hub)
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({engine, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for side in (*sides, waiting):
        side.cancel()
    if not engine.done():
        if hub.store.remote is not None:
            hub.store.remote.hurry()
        await stop_hub(hub)
    with contextlib.suppress(Exception):
        await engine
    if hub.mirror is not None:
        await hub.mirror.close()
    if hub.engine.failure is None:
        await hub.outputs.close()
        await hub.writer.close()
        hub.store.close(clean=True)
    return hub.engine.failure


def _may_go_on(hub: Hub, failure: BaseException) -> bool:
    """Whether a reload may help: not where the store is another's or gone, and not again and again.

    On a server a hub that was taken over goes on by standing by.
    """
    if isinstance(failure, EpochLost) and hub.store.remote is not None:
        logger.warning("this hub steps down: %s", failure.message)
        return True
    if isinstance(failure, Resigned):
        logger.warning("this hub hands over: %s", failure)
        hub.ground.role.resigned = True
        return True
    if isinstance(failure, StoreGone | EpochLost):
        return False
    if not isinstance(failure, TurnFailed):
        hub.ground.setbacks.reports.file("engine", "the hub's engine stopped: it reloads", error=failure)
    return hub.ground.setbacks.may_reload()


def _make_note(config: HubConfig, ground: Ground, server: HttpServer) -> Callable[[], None]:
    """Says where the hub is, and which part it plays, to programs on this machine; writes only what is new."""
    written: dict[str, Any] = {}

    def note() -> None:
        nonlocal written
        document: dict[str, Any] = {"url": server.url, **describe_self(config.home)}
        document |= {"epoch": ground.role.epoch, "role": ground.role.name}
        tls = tls_files(config)
        if tls is not None:
            document["fingerprint"] = fingerprint(tls.cert)
        if ground.local is not None:
            document["socket"] = SOCKET_NAME
        if ground.grpc is not None:
            document["grpc"] = ground.grpc.address
        if document != written:
            rewrite_private(config.home / "hub.json", json.dumps(document).encode())
            written = document

    return note


async def _note_address(hub: Hub) -> None:
    hub.ground.note_address()


async def _announce(hub: Hub) -> None:
    """Say where the hub is, to people too, and how others join it."""
    await _note_address(hub)
    print(f"ready {hub.url}", flush=True)
    if hub.ground.grpc is not None:
        print(f"grpc {hub.ground.grpc.address}", flush=True)
    if is_loopback(hub.config.host):
        return
    if not sys.stdout.isatty():
        # What is not a terminal is a log, which is no place for a token.
        print("add a machine by the line that this prints: dray token create --scope join", flush=True)
        return
    made = await hub.tokens.create(Caller("", getpass.getuser(), ("admin",)), getpass.getuser(), ("join",))
    print(f"join with (until {made['expires_at']}): {hub.owners.tell_join(made['token'])}", flush=True)


def _rules(config: HubConfig) -> Rules:
    """The timers as they are set: what a setting says in seconds a rule says in milliseconds."""
    given: dict[str, Any] = {}
    for rule in fields(Rules):
        if hasattr(config, rule.name):
            given[rule.name] = getattr(config, rule.name)
        elif (said := getattr(config, f"{rule.name.removesuffix('_ms')}_s", None)) is not None:
            each = isinstance(said, tuple)
            given[rule.name] = tuple(round(one * 1000) for one in said) if each else round(said * 1000)
    return Rules(**given)
