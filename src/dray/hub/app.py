"""The hub put together: store, engine, sessions, HTTP; started, kept clean, stopped.

The only module of the hub that wires things. A turn that cannot be decided, or a commit that fails, ends the engine and
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
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

from dray.config import HubConfig
from dray.core.lifecycle.recovery import wake_up
from dray.core.lifecycle.state.effects import CallsDone
from dray.core.lifecycle.state.events import EpochStarted
from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.descriptors import file_limit, raise_file_limit
from dray.errors import DrayError, EpochLost, NoSpace, StoreGone
from dray.hub.access.caller import Caller
from dray.hub.access.certificate_watch import CertificateWatch
from dray.hub.access.certificates import (
    TlsFiles,
    check_bind,
    ensure_certificate,
    fingerprint,
    is_loopback,
    join_line,
)
from dray.hub.access.connections import streams_most
from dray.hub.access.passes import Passes
from dray.hub.access.request_budgets import Budgets
from dray.hub.access.task_tokens import TaskTokens, ensure_secret
from dray.hub.access.tokens import Tokens, ensure_first_token, rewrite_private, write_private
from dray.hub.answers.answers import Answers, Parts, find_owner
from dray.hub.answers.calls import CallAnswers
from dray.hub.answers.estimates import Forecasts
from dray.hub.answers.metrics import Metrics
from dray.hub.answers.site import SiteAnswers, SiteParts
from dray.hub.calls.arguments import ArgsMemory
from dray.hub.calls.assignments import LaneFeed
from dray.hub.calls.blob_access import BlobAccess
from dray.hub.calls.blobs import Blobs
from dray.hub.calls.results import Recorded
from dray.hub.calls.subscriptions import CallFeed
from dray.hub.channel.channel import SCOPES, ChannelLimits, ClientChannels, Surroundings
from dray.hub.decisions.calls import CallSources
from dray.hub.decisions.pacing import SubmitPacing
from dray.hub.decisions.policy import settle_at_start
from dray.hub.decisions.policy_file import PolicyFile, find_policy_file
from dray.hub.documents.public_feed import Feed
from dray.hub.documents.queue_rates import QueueStatistics
from dray.hub.documents.records import check_readiness
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.engine.failed_turns import Setbacks
from dray.hub.engine.fault_reports import Reports
from dray.hub.engine.garbage import leave_out_what_is_there, take_over_collector
from dray.hub.engine.projection import Projector
from dray.hub.engine.recovery import recover
from dray.hub.engine.told_turns import Behind, TurnWords, report_behind, tell_lost
from dray.hub.engine.turns import Decision, TurnFailed
from dray.hub.housekeeping import keep_house, tell_set_aside, watch_store
from dray.hub.http.api import FileReport, HttpApi, HttpLimits, SocketRoute
from dray.hub.http.front import Front
from dray.hub.http.server import Bound, HttpServer, bind, bind_local
from dray.hub.logs import set_up_logging
from dray.hub.notifications.alarms import Alarms
from dray.hub.notifications.notifier import Notifier
from dray.hub.operations.batches import Batches
from dray.hub.operations.operation import Desk, Values
from dray.hub.proxy.addresses import choose_domain
from dray.hub.proxy.doors import open_doors
from dray.hub.rows import Rows
from dray.hub.serving.answers import ServiceAnswers
from dray.hub.standing import Standing
from dray.hub.store.base import AuditRecord, Position, TokenRow
from dray.hub.store.space import SpaceWatch
from dray.hub.store.sqlite.errors import tell_unusable
from dray.hub.store.sqlite.opening import Check
from dray.hub.store.sqlite.store import SqliteStore
from dray.hub.store.writer import StoreWriter
from dray.hub.templates.answers import TemplateAnswers
from dray.hub.tunnels.passages import Passages
from dray.hub.workers.outbound import Publish, Runner
from dray.hub.workers.outputs import Outputs
from dray.hub.workers.owners import Owners
from dray.hub.workers.questions import Questions
from dray.hub.workers.sessions import GOING_AWAY, Limits, Sessions
from dray.logfile import make_handler
from dray.presence import describe_self, hold, keep_private
from dray.settings_file import list_ignored
from dray.wire.messages.client import CLIENT_PATH
from dray.wire.reach.dialling import SOCKET_NAME

RECALLED_RUNS = 2_000
# "Service restart": whoever hears it dials again.
RELOADING = 1012
NO_SPACE_S = 1.0
logger = logging.getLogger("dray.hub")


class Hub(NamedTuple):
    """A running hub."""

    config: HubConfig
    store: SqliteStore
    writer: StoreWriter
    engine: Engine
    answers: Answers
    sessions: Sessions
    passages: Passages
    channels: ClientChannels
    feed: Feed
    outputs: Outputs
    blobs: Blobs
    tokens: Tokens
    owners: Owners
    notifier: Notifier
    alarms: Alarms
    api: HttpApi
    server: HttpServer
    url: str
    ground: Ground


class Ground(NamedTuple):
    """What outlives an engine: the sockets, the application behind it, and what went wrong so far."""

    bound: Bound
    local: socket.socket | None
    front: Front
    setbacks: Setbacks
    certificate: CertificateWatch | None = None


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


async def start_hub(config: HubConfig) -> Hub:
    """Open the store, recover, listen. Everything that can go wrong does so before the first answer."""
    tls = _tls_files(config)
    check_bind(config.host, tls is not None)
    bound = bind(config.host, config.port)
    setbacks = Setbacks(Reports(config.home / "reports"))
    certificate = CertificateWatch(tls) if tls is not None else None
    return await _begin(config, Ground(bound, bind_local(config.home), Front(), setbacks, certificate))


async def reload_hub(hub: Hub, told: asyncio.Event) -> Hub:
    """Let a memory go that is not to be used again, and come back from disk at the same address; not if told to end."""
    why = "the hub reloads: ask again in a second"
    hub.ground.front.withdraw(why)
    hub.answers.ready = False
    hub.feed.close()
    hub.api.close()
    hub.sessions.closed_all(RELOADING, why)
    hub.passages.close(RELOADING, why)
    for channel in list(hub.channels.open):
        channel.close(RELOADING, why)
    await hub.outputs.close()
    await hub.writer.close()
    hub.store.close(clean=False)
    while True:
        try:
            return await _begin(hub.config, hub.ground, hub.server)
        except NoSpace as full:
            # Whoever frees space need not start the hub as well.
            hub.ground.front.withdraw(f"the hub waits: {full.message}")
            logger.error("the hub cannot reload yet: %s", full.message)
            if await _is_told(told, NO_SPACE_S):
                raise


async def _is_told(told: asyncio.Event, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(told.wait(), within_s)
    return told.is_set()


async def _begin(config: HubConfig, ground: Ground, server: HttpServer | None = None) -> Hub:
    policy_file = find_policy_file(config.home)
    tls = _tls_files(config)
    # A file that this very process has written to until now need not be read through.
    check: Check = "unclean" if server is None else "never"
    store = SqliteStore.open(config.home / "hub.sqlite", reserve_bytes=config.reserve_bytes, check=check)
    try:
        return await _go_on(config, ground, server, store, policy_file, tls)
    except BaseException:
        store.close(clean=False)
        raise


async def _go_on(
    config: HubConfig,
    ground: Ground,
    server: HttpServer | None,
    store: SqliteStore,
    policy_file: PolicyFile | None,
    tls: TlsFiles | None,
) -> Hub:
    reports = ground.setbacks.reports
    recovered = recover(store, _rules(config))
    if store.lost is not None:
        reports.file("lost turns", tell_lost(store.lost))
    for what, error in recovered.faults:
        reports.file(
            "stored value", f"{what} could not be taken in at the start: it was set aside", error=error
        )
    state, seq = recovered.state, max(recovered.seq, store.position().seq)
    policy_change = settle_at_start(state, policy_file)
    clock = HubClock(recovered.now_ms, recovered.clock_base)
    epoch = store.begin_epoch()
    now = clock.read()
    store.save_clock(now.now_ms, now.at_ms, clock.base)
    # With a new key: a hub that was put back to an earlier time counts again what it counted then, for other work.
    wake_up(state, now, secrets.token_bytes(32), store.recent_runs(RECALLED_RUNS))
    leave_out_what_is_there(again=server is not None)
    ensure_first_token(config.home, getpass.getuser(), store, now.at_ms)
    hub = _wire(config, store, state, seq, clock, ground, server, tls)
    tell_set_aside(store, reports)
    hub.writer.start()
    hub.outputs.start()
    hub.feed.start(seq)
    _fold_epoch(hub.engine, epoch)
    if policy_change is not None:
        hub.engine.post(policy_change)
    if server is None:
        await hub.server.start()
    hub.answers.checks.append(check_readiness)
    hub.answers.ready = True
    ground.front.app = open_doors(hub.api, hub.passages, choose_domain(config.proxy_domain, config.host))
    return hub


def _fold_epoch(engine: Engine, epoch: int) -> None:
    engine.post(lambda state, clock: Decision([EpochStarted(epoch)]))


def _wire(
    config: HubConfig,
    store: SqliteStore,
    state: State,
    seq: int,
    clock: HubClock,
    ground: Ground,
    server: HttpServer | None,
    tls: TlsFiles | None,
) -> Hub:
    setbacks, writer = ground.setbacks, StoreWriter(store)
    feed, rows = Feed(store), Rows(state, store)
    engine: Engine | None = None

    def the_engine() -> Engine:
        assert engine is not None  # set below, before anything can call
        return engine

    outputs = Outputs(config.home / "output", config.log_bytes_per_attempt, find_owner(rows))
    standing = Standing(state, setbacks.reports, ground.certificate, config.home)
    metrics = Metrics(lambda: standing.read(the_engine(), sessions))
    questions = Questions(the_engine, metrics.snapshot)
    tasks = TaskTokens(secret := ensure_secret(config.home, write_private), state.jobs.get)
    tokens, owners = _make_tokens(store, writer, clock, the_engine, tasks)
    passes, domain = Passes(secret, tokens), choose_domain(config.proxy_domain, config.host)
    behind = partial(report_behind, setbacks.reports)
    sessions = Sessions(the_engine, store, rows, outputs, questions, _limits(config), tokens, owners, behind)
    blobs = _make_blobs(config, store, writer, clock, metrics)
    args, call_feed = ArgsMemory(store), CallFeed(state, store, metrics.count_calls)
    runner = Runner(
        rows,
        sessions,
        feed,
        lambda note: answers.notice(note),  # noqa: PLW0108 - `answers` is made further down
        config.heartbeat_s,
        LaneFeed(state, args, tasks.make),
        _publish_to(call_feed, blobs),
        partial(_report_effect, setbacks.reports),
        tasks.make_use,
    )
    engine = Engine(rows, writer, clock, runner, metrics, Projector(writer, seq), seq, setbacks)
    words = _make_words(secret, store, engine, behind)
    is_low = SpaceWatch(partial(store.low_space, config.min_free_bytes))
    limits, now_at = (config.batch_specs, round(config.stale_s * 1000)), clock.read().at_ms
    more, templates = _make_more(config, engine, clock, rows, store), TemplateAnswers(engine)
    given = (engine, store, rows, feed, outputs, metrics, is_low)
    answers = Answers(Parts(*given, *limits, now_at, *more, templates, setbacks))
    notifier, alarms = _make_tellers(config, engine, store, rows, answers)
    answers.listeners += [call_feed.hear, args.hear, tokens.hear]
    answers.checks += [owners.examine, *([ground.certificate.check] if ground.certificate else [])]
    access = BlobAccess(blobs, store, lambda: state, owners.workers_of, config.max_user_blob_bytes)
    calls = CallAnswers(engine, CallSources(answers.sources, args, access.missing), answers.calls, call_feed)

    report, budgets = partial(_report_question, setbacks.reports), Budgets(streams_most(file_limit()))
    batches = Batches(answers, engine, rows)
    values, services = Values(blobs, calls, access, batches), ServiceAnswers(answers, engine, passes, domain)
    desk = Desk(answers, tokens, owners, values, notifier, services)
    around = Surroundings(desk, tokens.hold, budgets, words, sessions.departures, report)
    channels = ClientChannels(around, ChannelLimits(config.frame_msgpack_bytes, config.queue_bytes))
    passages = Passages(the_engine, sessions, tokens.hold, budgets, passes)
    answers.listeners.append(passages.reacher.hear)
    answers.shared_accounts = tokens.tell_shared
    api = _make_api(config, desk, _make_routes(sessions, channels, passages), metrics, report, budgets)
    api.words = words
    answers.checks.append(api.knocks.examine)
    server = server or _make_server(config, ground, tls)
    owners.tell_join = _join_words(config, server.url, tls)
    sides = (sessions, passages, channels, feed, outputs, blobs, tokens, owners, notifier, alarms)
    return Hub(config, store, writer, engine, answers, *sides, api, server, server.url, ground)


def _make_routes(sessions: Sessions, channels: ClientChannels, passages: Passages) -> list[SocketRoute]:
    return [
        SocketRoute("/ws", ("worker", "read"), sessions.handle),
        SocketRoute(CLIENT_PATH, SCOPES, channels.handle),
        *(SocketRoute(*socket) for socket in passages.sockets),
    ]


def _make_tellers(
    config: HubConfig, engine: Engine, store: SqliteStore, rows: Rows, answers: Answers
) -> tuple[Notifier, Alarms]:
    notifier = Notifier(config.home, engine, store, rows, answers.documents, config.notify_retry_s)
    alarms = Alarms(engine, config.home, config.alarm_every_s)
    answers.listeners += [notifier.hear, alarms.hear]
    return notifier, alarms


def _make_server(config: HubConfig, ground: Ground, tls: TlsFiles | None) -> HttpServer:
    cert, key = (tls.cert, tls.key) if tls else (None, None)
    frame_bytes = config.frame_msgpack_bytes + (1 << 20)
    server = HttpServer(ground.front, ground.bound, cert, key, frame_bytes, local=ground.local)
    if ground.certificate is not None:
        ground.certificate.reload = server.reload_certificate
    return server


def _make_words(secret: bytes, store: SqliteStore, engine: Engine, behind: Behind) -> TurnWords:
    def now() -> Position:
        return Position(store.epoch, engine.told)

    return TurnWords(secret, store.position(), now, behind, engine.raise_epoch)


def _report_question(reports: Reports, kind: str, error: BaseException) -> str:
    return reports.file(kind, f"a question of the kind {kind} failed", error=error).id


def _report_effect(reports: Reports, effect: str, error: BaseException) -> None:
    reports.file(
        "effect", f"an effect of the kind {effect} could not be carried out; the others were", error=error
    )


def _make_tokens(
    store: SqliteStore, writer: StoreWriter, clock: HubClock, engine: Callable[[], Engine], tasks: TaskTokens
) -> tuple[Tokens, Owners]:
    async def audit(record: AuditRecord) -> None:
        await engine().change(lambda state, clock: Decision(audit=(record,)))

    async def save(row: TokenRow, record: AuditRecord) -> None:
        await writer.run(lambda target: target.save_token(row))
        await audit(record)

    tokens = Tokens(store.tokens(), lambda: clock.read().at_ms, save, tasks)
    return tokens, Owners(tokens, lambda: engine().state, audit)


def _limits(config: HubConfig) -> Limits:
    return Limits(
        config.frame_text_bytes,
        config.frame_msgpack_bytes,
        config.queue_messages,
        config.queue_bytes,
        config.max_workers,
        config.max_epoch_jump,
    )


def _make_more(
    config: HubConfig, engine: Engine, clock: HubClock, rows: Rows, store: SqliteStore
) -> tuple[SiteAnswers, Forecasts]:
    statistics = QueueStatistics(clock.read().now_ms)
    site = SiteAnswers(SiteParts(engine, config, clock, SubmitPacing(), statistics, rows, store))
    return site, Forecasts(engine, clock, config.estimate_every_s)


def _make_api(
    config: HubConfig,
    desk: Desk,
    routes: list[SocketRoute],
    metrics: Metrics,
    report: FileReport,
    budgets: Budgets,
) -> HttpApi:
    limits = HttpLimits(config.body_bytes, config.json_depth)
    hosts = (*config.hosts, config.host, socket.gethostname())
    desk.tokens.accounts.own_allowed = config.share_own_account
    return HttpApi(desk, hosts, limits, routes, metrics.count_request, report, budgets)


def _make_blobs(
    config: HubConfig, store: SqliteStore, writer: StoreWriter, clock: HubClock, metrics: Metrics
) -> Blobs:
    def has_space(size: int) -> bool:
        return store.free_bytes() - size >= config.min_free_bytes

    def clock_ms() -> int:
        return clock.read().at_ms

    folder = config.home / "blobs"
    blobs = Blobs(folder, store, writer, config.max_blob_bytes, has_space, clock_ms, metrics.count_blob)
    try:
        blobs.folder.offer(config.max_blob_bytes, config.min_free_bytes)
    except OSError as fault:
        # Then values come by HTTP, as from other machines, until the disk has room again.
        logger.warning("%s cannot be offered to this machine's programs: %s", folder, fault.strerror)
    return blobs


def _publish_to(call_feed: CallFeed, blobs: Blobs) -> Publish:
    def publish(seq: int, ended: list[Recorded | CallsDone]) -> None:
        # Whose worker put the file there itself is heard of here first.
        for one in ended:
            if isinstance(one, Recorded):
                for value in one.columns.value:
                    if type(value) is tuple:
                        blobs.note(*value)
        call_feed.publish(seq, ended)

    return publish


async def stop_hub(hub: Hub) -> None:
    """Drain answers, commit, close sockets with 1001; tasks keep running."""
    hub.answers.ready = False
    hub.feed.close()
    hub.api.close()
    hub.sessions.closed_all(GOING_AWAY, "the hub is stopping")
    hub.passages.close(GOING_AWAY, "the hub is stopping")
    await hub.channels.stop(GOING_AWAY, "the hub is stopping")
    await hub.server.stop()
    hub.engine.stop()


async def _serve(config: HubConfig) -> int:
    hub = await start_hub(config)
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        failure = await _live(hub, told, _announce)
        while failure is not None and _may_go_on(hub, failure):
            hub = await reload_hub(hub, told)
            failure = await _live(hub, told, _note_address)
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


async def _live(
    hub: Hub, told: asyncio.Event, announce: Callable[[Hub], Awaitable[None]]
) -> BaseException | None:
    """Run one engine until it is told to stop, or fails; gives the failure."""
    engine = asyncio.create_task(hub.engine.run())
    sides = [
        asyncio.create_task(keep_house(hub.config, hub.engine, hub.writer, hub.outputs, hub.blobs)),
        asyncio.create_task(hub.answers.forecasts.run()),
        asyncio.create_task(hub.notifier.run()),
        asyncio.create_task(hub.alarms.run()),
        asyncio.create_task(watch_store(hub.engine, hub.store, hub.ground.setbacks.reports)),
    ]
    if (certificate := hub.ground.certificate) is not None:
        sides.append(asyncio.create_task(certificate.run(lambda: _note_address(hub))))
    await announce(hub)
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({engine, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for side in (*sides, waiting):
        side.cancel()
    if not engine.done():
        await stop_hub(hub)
    with contextlib.suppress(Exception):
        await engine
    if hub.engine.failure is None:
        await hub.outputs.close()
        await hub.writer.close()
        hub.store.close(clean=True)
    return hub.engine.failure


def _may_go_on(hub: Hub, failure: BaseException) -> bool:
    """Whether a reload may help: not where the store is another's or gone, and not again and again."""
    if isinstance(failure, StoreGone | EpochLost):
        return False
    if not isinstance(failure, TurnFailed):
        hub.ground.setbacks.reports.file("engine", "the hub's engine stopped: it reloads", error=failure)
    return hub.ground.setbacks.may_reload()


async def _note_address(hub: Hub) -> None:
    """Say where the hub is, to programs on this machine."""
    document: dict[str, Any] = {"url": hub.url, **describe_self(hub.config.home), "epoch": hub.store.epoch}
    tls = _tls_files(hub.config)
    if tls is not None:
        document["fingerprint"] = fingerprint(tls.cert)
    if hub.ground.local is not None:
        document["socket"] = SOCKET_NAME
    rewrite_private(hub.config.home / "hub.json", json.dumps(document).encode())


async def _announce(hub: Hub) -> None:
    """Say where the hub is, to people too, and how others join it."""
    await _note_address(hub)
    print(f"ready {hub.url}", flush=True)
    if is_loopback(hub.config.host):
        return
    if not sys.stdout.isatty():
        # What is not a terminal is a log, which is no place for a token.
        print("add a machine by the line that this prints: dray token create --scope join", flush=True)
        return
    made = await hub.tokens.create(Caller("", getpass.getuser(), ("admin",)), getpass.getuser(), ("join",))
    print(f"join with (until {made['expires_at']}): {hub.owners.tell_join(made['token'])}", flush=True)


def _join_words(config: HubConfig, url: str, tls: TlsFiles | None) -> Callable[[str], str]:
    if config.host in ("0.0.0.0", "::"):
        port = url.rpartition(":")[2]
        url = f"https://{socket.gethostname()}:{port}"
    # Read each time: a certificate is renewed under a running hub.
    return lambda token: join_line(url, fingerprint(tls.cert) if tls else "", token)


def _tls_files(config: HubConfig) -> TlsFiles | None:
    if config.tls_cert is not None and config.tls_key is not None:
        return TlsFiles(config.tls_cert, config.tls_key)
    if is_loopback(config.host):
        return None
    return ensure_certificate(config.home, (config.host, socket.gethostname(), "localhost", "127.0.0.1"))


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
