"""One hub wired: its parts made and handed to each other. Starts nothing and stops nothing; `hub.app` does."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dray.config import HubConfig
from dray.core.lifecycle.state.effects import CallsDone
from dray.core.lifecycle.state.state import State
from dray.descriptors import file_limit
from dray.errors import InvalidConfig
from dray.hub.access.certificate_watch import CertificateWatch
from dray.hub.access.certificates import (
    TlsFiles,
    ensure_certificate,
    fingerprint,
    is_loopback,
    join_line,
)
from dray.hub.access.connections import streams_most
from dray.hub.access.entrance import Hosts
from dray.hub.access.passes import Passes
from dray.hub.access.request_budgets import Budgets
from dray.hub.access.task_tokens import TaskTokens, ensure_secret
from dray.hub.access.tokens import SCOPES as TOKEN_SCOPES
from dray.hub.access.tokens import Tokens, write_private
from dray.hub.answers.answers import Answers, Parts, find_owner
from dray.hub.answers.calls import CallAnswers
from dray.hub.answers.estimates import Forecasts
from dray.hub.answers.metrics import Metrics
from dray.hub.answers.site import SiteAnswers, SiteParts
from dray.hub.aside.solver import Solver
from dray.hub.calls.arguments import ArgsMemory
from dray.hub.calls.assignments import LaneFeed
from dray.hub.calls.blob_access import BlobAccess
from dray.hub.calls.blobs import Blobs
from dray.hub.calls.results import Recorded
from dray.hub.calls.snapshots import Snapshots
from dray.hub.calls.subscriptions import CallFeed
from dray.hub.channel.channel import SCOPES, ChannelLimits, ClientChannels, Surroundings
from dray.hub.decisions.calls import CallSources
from dray.hub.decisions.pacing import SubmitPacing
from dray.hub.documents.public_feed import Feed
from dray.hub.documents.queue_rates import QueueStatistics
from dray.hub.engine.clock import HubClock
from dray.hub.engine.engine import Engine
from dray.hub.engine.failed_turns import Setbacks
from dray.hub.engine.fault_reports import Reports
from dray.hub.engine.projection import Projector
from dray.hub.engine.told_turns import Behind, TurnWords, report_behind
from dray.hub.engine.turns import Decision
from dray.hub.files.base import Files
from dray.hub.files.local import LocalFiles
from dray.hub.files.opening import has_little, lead_of, offer_blobs, open_files
from dray.hub.gateways.frames import PATH
from dray.hub.gateways.gateway import Gateway
from dray.hub.gateways.hub_tokens import GATEWAY, SECRET_BYTES, SECRET_NAME, HubTokens
from dray.hub.gateways.leading import Gateways
from dray.hub.gateways.links import Links
from dray.hub.http.api import FileReport, HttpApi, HttpLimits, SocketRoute
from dray.hub.http.front import Front
from dray.hub.http.server import Bound, HttpServer
from dray.hub.launchers.answers import make_launches
from dray.hub.launchers.desk import LaunchDesk
from dray.hub.moves.answers import MoveAnswers
from dray.hub.notifications.alarms import Alarms
from dray.hub.notifications.notifier import Notifier
from dray.hub.operations.batches import Batches
from dray.hub.operations.operation import Desk, Values
from dray.hub.pages.sign_in import SignIn
from dray.hub.proxy.addresses import choose_domain
from dray.hub.relays.relay import Relay
from dray.hub.roles import HubRoles, Role, checks_of
from dray.hub.rows import Rows
from dray.hub.serving.answers import ServiceAnswers
from dray.hub.standing import Standing
from dray.hub.store.base import AuditRecord, Position, Remote, Store, TokenRow
from dray.hub.store.space import SpaceWatch
from dray.hub.store.writer import StoreWriter, make_writer
from dray.hub.studies.desk import StudyDesk, make_studies
from dray.hub.templates.answers import TemplateAnswers
from dray.hub.tunnels.passages import Passages
from dray.hub.views.views import Views, make_views
from dray.hub.workers.leases import Leases
from dray.hub.workers.outbound import Publish, Runner
from dray.hub.workers.outputs import Outputs
from dray.hub.workers.owners import Owners
from dray.hub.workers.questions import Questions
from dray.hub.workers.session import Limits
from dray.hub.workers.sessions import Sessions
from dray.hub.workloads.answers import WorkloadAnswers
from dray.presence import ensure_id
from dray.wire.messages.client import CLIENT_PATH

if TYPE_CHECKING:
    from dray.hub.grpc.server import GrpcServer
    from dray.hub.grpc.serving import GrpcApi
    from dray.hub.mirror.mirror import Mirror

logger = logging.getLogger("dray.hub")


class Hub(NamedTuple):
    """A running hub."""

    config: HubConfig
    store: Store
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
    views: Views
    api: HttpApi
    server: HttpServer
    url: str
    ground: Ground
    launch_desk: LaunchDesk
    solver: Solver
    studies: StudyDesk
    mirror: Mirror | None = None
    gateways: Gateways | None = None
    grpc: GrpcApi | None = None


class Ground(NamedTuple):
    """What outlives an engine: the sockets, the application behind it, and what went wrong so far."""

    bound: Bound
    local: socket.socket | None
    front: Front
    setbacks: Setbacks
    role: Role
    certificate: CertificateWatch | None = None
    # Where it answers over gRPC as well.
    grpc: GrpcServer | None = None
    # Where the store is on a server: what holds sockets of workers while others lead, and its way to them.
    links: Links | None = None
    relay: Relay | None = None
    # Says where this process is, to programs of this machine; again and again costs nothing.
    note_address: Callable[[], None] = lambda: None

    def tell_fingerprint(self) -> str:
        """By what other hubs know that they talk to this one; a certificate is renewed meanwhile."""
        return "" if self.certificate is None else self.certificate.fingerprint

    def count_workers(self) -> int:
        """How many workers are connected to this very process."""
        held = 0 if self.links is None else len(self.links.gateway.peers)
        return held + self.role.sessions()

    def tell_went_back(self, why: str) -> None:
        """A store that this hub followed is not the one that it was."""
        self.setbacks.reports.file("lost turns", f"the database went back under a hub that stood by: {why}")


def wire_hub(
    config: HubConfig,
    store: Store,
    state: State,
    seq: int,
    clock: HubClock,
    ground: Ground,
    server: HttpServer,
) -> Hub:
    """Make all parts of a hub that leads, and hand them to each other."""
    setbacks, writer = ground.setbacks, make_writer(store)
    feed, rows, projector = Feed(store), Rows(state, store), Projector(writer, seq)
    mirror = _make_mirror(config, store, server.url, projector, feed)
    engine: Engine | None = None

    def the_engine() -> Engine:
        assert engine is not None  # set below, before anything can call
        return engine

    files = open_files(config, store, write_private)
    outputs = Outputs(files.tapes, config.log_bytes_per_attempt, find_owner(rows), lead_of(files, store))
    standing = Standing(state, setbacks.reports, ground.certificate, config.home, files, mirror)
    metrics = Metrics(lambda: standing.read(the_engine(), sessions))
    tasks = TaskTokens(secret := ensure_secret(config.home, files.keep_secret), state.jobs.get)
    tokens, owners = _make_tokens(store, writer, clock, the_engine, tasks)
    passes, domain = Passes(secret, tokens), choose_domain(config.proxy_domain, config.host)
    questions, behind = Questions(the_engine, metrics.snapshot), partial(report_behind, setbacks.reports)
    sessions = Sessions(the_engine, store, rows, outputs, questions, _limits(config), tokens, owners, behind)
    blobs = _make_blobs(config, store, writer, clock, metrics, files)
    args, call_feed = ArgsMemory(store), CallFeed(state, store, metrics.count_calls)
    lanes, publish = LaneFeed(state, args, tasks.make), _publish_to(call_feed, blobs)
    rest = (config.heartbeat_s, lanes, publish, partial(_report_effect, setbacks.reports), tasks.make_use)
    runner = Runner(rows, sessions, feed, lambda note: answers.notice(note), *rest)  # noqa: PLW0108 - made below
    engine = Engine(rows, writer, clock, runner, metrics, projector, seq, setbacks)
    solver = Solver(engine, clock, metrics.count_solved)
    runner.solve = solver.want
    words = _make_words(secret, store, engine, behind)
    given = (engine, store, rows, feed, outputs, metrics, _watch_space(config, store, files))
    answers = _make_answers(config, clock, setbacks, *given)
    notifier, alarms = _make_tellers(config, engine, store, rows, answers)
    answers.checks += [owners.examine, *_checks_of(store, ground, files, mirror)]
    access, snapshots = _make_access(blobs, store, answers, owners, config)
    calls = CallAnswers(engine, CallSources(answers.sources, args, access.missing), answers.calls, call_feed)
    report, budgets = partial(_report_question, setbacks.reports), Budgets(streams_most(file_limit()))
    services, moves = ServiceAnswers(answers, engine, passes, domain), MoveAnswers(rows, engine, clock)
    values = Values(blobs, calls, access, Batches(answers, engine, rows), snapshots)
    asked = (values, notifier, services, moves)
    views, roles = make_views(writer, engine, clock, answers, config), HubRoles(ground.role, store, engine)
    launch_desk, launches = make_launches(engine, tokens, owners)
    workloads, leases = WorkloadAnswers(answers, engine, feed), Leases(the_engine, sessions, tokens)
    studies = make_studies(engine, clock, answers, store)
    seen = (roles, views, SignIn(tokens))
    desk = Desk(answers, tokens, owners, *asked, *seen, workloads, leases, launches, studies)
    around = Surroundings(desk, tokens.hold, budgets, words, sessions.departures, report)
    channels = ClientChannels(around, ChannelLimits(config.frame_msgpack_bytes, config.queue_bytes))
    passages = Passages(the_engine, sessions, tokens.hold, budgets, passes)
    gateways = standing.gateways = _make_gateways(store, the_engine, sessions, tokens, owners, ground)
    hearers = (call_feed, args, tokens, passages.reacher, workloads, launch_desk)
    answers.listeners += [each.hear for each in hearers]
    answers.shared_accounts = tokens.tell_shared
    routes = _make_routes(sessions, channels, passages, gateways)
    api = _make_api(config, desk, routes, metrics, report, budgets)
    api.words, sessions.gate = words, api.gate
    answers.checks += [api.knocks.examine]
    owners.tell_join = _join_words(ground.role.url, tls_files(config), store.remote)
    sides = (sessions, passages, channels, feed, outputs, blobs, tokens, owners, notifier, alarms)
    grpc = _make_grpc_api(ground, api, desk, sessions)
    more = (server, server.url, ground, launch_desk, solver, studies, mirror, gateways, grpc)
    return Hub(config, store, writer, engine, answers, *sides, views, api, *more)


def _watch_space(config: HubConfig, store: Store, files: Files) -> SpaceWatch:
    least = config.min_free_bytes
    return SpaceWatch(lambda: store.low_space(least) or has_little(files, least))


def _make_mirror(
    config: HubConfig, store: Store, url: str, projector: Projector, feed: Feed
) -> Mirror | None:
    """The live view in Redis, fed with rows that were written and notes that were committed; its driver is an extra."""
    if not config.redis:
        return None
    try:
        from dray.hub.mirror.mirror import Mirror
    except ImportError as missing:
        raise InvalidConfig(
            f"a live view in Redis needs {missing.name}, which is not installed here: pip install 'dray[redis]'"
        ) from missing
    settings: dict[str, Any] = {"prefix": config.redis_prefix, "documents_s": config.redis_documents_s}
    mirror = Mirror(config.redis, store, words=f"the hub at {url}", **settings)
    projector.listener, feed.listener = mirror.take_rows, mirror.take_notes
    return mirror


def _checks_of(
    store: Store, ground: Ground, files: Files, mirror: Mirror | None
) -> list[Callable[[State], dict[str, Any]]]:
    """For the doctor: how certificate, store and mirror are, where there are any of that kind; and where files are, if
    not in the home.
    """
    checks: list[Callable[[State], dict[str, Any]]] = [] if mirror is None else [mirror.examine]
    if ground.certificate is not None:
        checks.append(ground.certificate.check)
    if store.remote is not None:
        checks += checks_of(store.remote)
    if not isinstance(files, LocalFiles):
        checks.append(lambda state: _check("files", *files.describe()))
    return checks


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}


def _make_gateways(
    store: Store,
    engine: Callable[[], Engine],
    sessions: Sessions,
    tokens: Tokens,
    owners: Owners,
    ground: Ground,
) -> Gateways | None:
    """The leader's end of links to other hubs; one that keeps its store in its home is alone."""
    if (remote := store.remote) is None:
        return None
    secret = remote.keep_secret(SECRET_NAME, secrets.token_bytes(SECRET_BYTES))
    tokens.signed = HubTokens(secret, remote.holder)
    gateways = Gateways(engine, sessions, tokens, owners, ground.role.url, lambda: store.epoch, remote)
    engine().tell_turn = gateways.tell_turn
    return gateways


def _make_routes(
    sessions: Sessions, channels: ClientChannels, passages: Passages, gateways: Gateways | None
) -> list[SocketRoute]:
    links = [] if gateways is None else [SocketRoute(PATH, GATEWAY, gateways.handle)]
    return [
        *links,
        SocketRoute("/ws", ("worker", "read"), sessions.handle),
        SocketRoute(CLIENT_PATH, SCOPES, channels.handle),
        *(SocketRoute(*socket) for socket in passages.sockets),
    ]


def _make_tellers(
    config: HubConfig, engine: Engine, store: Store, rows: Rows, answers: Answers
) -> tuple[Notifier, Alarms]:
    notifier = Notifier(config.home, engine, store, rows, answers.documents, config.notify_retry_s)
    alarms = Alarms(engine, config.home, config.alarm_every_s)
    answers.listeners += [notifier.hear, alarms.hear]
    return notifier, alarms


def make_server(config: HubConfig, ground: Ground, tls: TlsFiles | None) -> HttpServer:
    """The server around the application, for as long as the process lives."""
    cert, key = (tls.cert, tls.key) if tls else (None, None)
    ground.front.hosts = Hosts(_hosts_of(config))
    frame_bytes = config.frame_msgpack_bytes + (1 << 20)
    return HttpServer(ground.front, ground.bound, cert, key, frame_bytes, local=ground.local)


def make_grpc(
    config: HubConfig, tls: TlsFiles | None, relay: Relay | None, links: Links | None
) -> GrpcServer | None:
    """The server of gRPC, where one is asked for; its libraries are an extra."""
    if config.grpc_port is None:
        return None
    # Its own support for forks prints warnings at every program that is started; read when it is loaded.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from dray.hub.grpc.server import GrpcServer, make_certificate
    except ImportError as missing:
        raise InvalidConfig(
            f"gRPC (grpc_port) needs {missing.name}, which is not installed here: pip install 'dray[grpc]'"
        ) from missing
    certificate = make_certificate(tls.cert, tls.key) if tls is not None else None
    server = GrpcServer(config.host, config.grpc_port, certificate, config.body_bytes)
    if relay is not None and links is not None:
        from dray.hub.grpc.tunnel import Passing

        server.passing = Passing(relay, links)
    return server


def tend_certificate(ground: Ground, server: HttpServer) -> None:
    """Have all that shows the certificate take up a new one."""
    if ground.certificate is None:
        return

    def reload() -> None:
        server.reload_certificate()
        if ground.grpc is not None:
            ground.grpc.reload_certificate()

    ground.certificate.reload = reload


def _make_grpc_api(ground: Ground, api: HttpApi, desk: Desk, sessions: Sessions) -> GrpcApi | None:
    if ground.grpc is None:
        return None
    from dray.hub.grpc.serving import GrpcApi
    from dray.hub.grpc.streams import Surroundings
    from dray.hub.grpc.tunnel import PATH as GRPC_PATH
    from dray.hub.grpc.tunnel import Tunnel

    made = GrpcApi(api, Surroundings(desk, desk.tokens, sessions))
    api.add_socket(SocketRoute(GRPC_PATH, TOKEN_SCOPES, Tunnel(made).handle))
    return made


def _make_words(secret: bytes, store: Store, engine: Engine, behind: Behind) -> TurnWords:
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
    store: Store, writer: StoreWriter, clock: HubClock, engine: Callable[[], Engine], tasks: TaskTokens
) -> tuple[Tokens, Owners]:
    async def audit(record: AuditRecord) -> None:
        await engine().change(lambda state, clock: Decision(audit=(record,)))

    async def save(row: TokenRow, record: AuditRecord) -> None:
        await writer.run(lambda target: target.save_token(row))
        await audit(record)

    tokens = Tokens(store.tokens(), lambda: clock.read().at_ms, save, tasks)
    return tokens, Owners(tokens, lambda: engine().state, audit)


def make_relay(config: HubConfig, front: Front, links: Links) -> Relay:
    """What serves clients while another hub leads."""
    return Relay(front, links, _hosts_of(config), config.body_bytes)


def _hosts_of(config: HubConfig) -> tuple[str, ...]:
    return (*config.hosts, config.host, socket.gethostname())


def make_links(config: HubConfig) -> Links | None:
    """What makes this hub a gateway while another one leads; only where several can share a store."""
    if not config.store:
        return None
    hub_id = ensure_id(config.home)
    return Links(Gateway(hub_id, _hosts_of(config), _limits(config)), hub_id)


def _limits(config: HubConfig) -> Limits:
    return Limits(
        config.frame_text_bytes,
        config.frame_msgpack_bytes,
        config.queue_messages,
        config.queue_bytes,
        config.max_workers,
        config.max_epoch_jump,
        config.heartbeat_s,
    )


def _make_answers(
    config: HubConfig,
    clock: HubClock,
    setbacks: Setbacks,
    engine: Engine,
    store: Store,
    rows: Rows,
    feed: Feed,
    outputs: Outputs,
    metrics: Metrics,
    low_space: SpaceWatch,
) -> Answers:
    began = clock.read()
    statistics = QueueStatistics(began.now_ms)
    site = SiteAnswers(SiteParts(engine, config, clock, SubmitPacing(), statistics, rows, store))
    more = (site, Forecasts(engine, clock, config.estimate_every_s), TemplateAnswers(engine), setbacks)
    given = (engine, store, rows, feed, outputs, metrics, low_space, config.batch_specs, began.at_ms)
    return Answers(Parts(*given, *more))


def _make_api(
    config: HubConfig,
    desk: Desk,
    routes: list[SocketRoute],
    metrics: Metrics,
    report: FileReport,
    budgets: Budgets,
) -> HttpApi:
    limits = HttpLimits(config.body_bytes, config.json_depth)
    desk.tokens.accounts.own_allowed = config.share_own_account
    api = HttpApi(desk, _hosts_of(config), limits, routes, metrics.count_request, report, budgets)
    if desk.sign_in is not None:
        desk.sign_in.miss = api.knocks.miss
    return api


def _make_blobs(
    config: HubConfig, store: Store, writer: StoreWriter, clock: HubClock, metrics: Metrics, files: Files
) -> Blobs:
    def has_space(size: int) -> bool:
        free = files.free_bytes()
        return free is None or free - size >= config.min_free_bytes

    def clock_ms() -> int:
        return clock.read().at_ms

    offer_blobs(config, files)
    return Blobs(files.blobs, store, writer, config.max_blob_bytes, has_space, clock_ms, metrics.count_blob)


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


def tell_url(config: HubConfig, url: str) -> str:
    """Where other machines find this hub: one that listens everywhere is found by the name of its host."""
    if config.host in ("0.0.0.0", "::"):
        port = url.rpartition(":")[2]
        return f"https://{socket.gethostname()}:{port}"
    return url


def _join_words(url: str, tls: TlsFiles | None, remote: Remote | None) -> Callable[[str], str]:
    def tell(token: str) -> str:
        others = (
            [hub.url for hub in remote.hubs.hubs] if remote is not None and remote.hubs is not None else []
        )
        # Read each time: a certificate is renewed under a running hub, and hubs come and go.
        return join_line(list(dict.fromkeys([url, *others])), fingerprint(tls.cert) if tls else "", token)

    return tell


def tls_files(config: HubConfig) -> TlsFiles | None:
    """Certificate and key of a hub; its own where it needs some and was given none."""
    if config.tls_cert is not None and config.tls_key is not None:
        return TlsFiles(config.tls_cert, config.tls_key)
    if is_loopback(config.host):
        return None
    return ensure_certificate(config.home, (config.host, socket.gethostname(), "localhost", "127.0.0.1"))


def _make_access(
    blobs: Blobs, store: Store, answers: Answers, owners: Owners, config: HubConfig
) -> tuple[BlobAccess, Snapshots]:
    state = answers.sources.rows.state
    access = BlobAccess(blobs, store, lambda: state, owners.workers_of, config.max_user_blob_bytes)
    answers.snapshots = Snapshots(blobs, access, config.max_snapshot_bytes)
    return access, answers.snapshots
