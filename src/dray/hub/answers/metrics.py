"""What the hub counts and times, for Prometheus and for workers that ask.

Owns the names and the registry; knows nothing about where the numbers come from. What moves with every turn is
counted when it happens (well under a microsecond each: the library's own histogram takes four, under a lock that nobody
here needs); what can be read off the state is read when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# A series for each of more cards than this would be most of what the hub writes.
MOST_CARDS = 2_048
_TURN_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_WAIT_BUCKETS_S = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 21600.0, 86400.0)


class Card(NamedTuple):
    """One card of a worker, how much of it is held and for how much of its time it is busy, 0 to 1; None: unknown."""

    worker: str
    number: int
    type: str
    held: float
    used: float | None = None


class MirrorGauge(NamedTuple):
    """How the live view in Redis stands: in one word, how far it is behind, how often parts of it were made anew."""

    state: str
    lag_s: float
    rebuilds: int


MIRROR_STATES = ("writes", "loading", "another", "away", "full", "unsafe", "refused")


class Gauges(NamedTuple):
    """How the hub stands at one moment.

    `log_lag` counts turns that are committed and not yet in the rows, `attempts` those that ended since the hub's
    start, by phase. `disk` is the size of the hub's disk and what is free of it, in bytes; `files_free` is what is free
    where output and large values go, if anybody can say. `prewarms`: hints to workers, and what became of them.
    """

    queue_depth: Mapping[str, int] = {}
    workers: Mapping[str, int] = {}
    sessions: int = 0
    log_lag: int = 0
    reports: int = 0
    attempts: Mapping[str, int] = {}
    certificate_s: float | None = None
    queue_wait_s: Mapping[str, float] = {}
    alarms: Mapping[str, int] = {}
    disk: tuple[int, int] = (0, 0)
    cards: Sequence[Card] = ()
    files_free: int | None = None
    files_ok: bool = True
    mirror: MirrorGauge | None = None
    gateways: Mapping[str, int] = {}
    prewarms: Mapping[str, int] = {}


ReadGauges = Callable[[], Gauges]


class Metrics:
    """One hub's numbers. `read_gauges` is called at each scrape, on the thread that asks."""

    def __init__(self, read_gauges: ReadGauges) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_GaugeReader(read_gauges))
        turn = self._histogram("dray_turn_seconds", "One turn of the hub", _TURN_BUCKETS_S)
        plan = self._histogram(
            "dray_plan_seconds", "One turn up to its commit: messages, timers and the pass", _TURN_BUCKETS_S
        )
        commit = self._histogram("dray_commit_seconds", "One commit of the store", _TURN_BUCKETS_S)
        wait = self._histogram(
            "dray_start_wait_seconds",
            "From the submit of a job to each start of a task of it",
            _WAIT_BUCKETS_S,
        )
        self.observe_turn = turn.observe
        self.observe_plan = plan.observe
        self.observe_commit = commit.observe
        self.observe_start_wait = wait.observe
        self._requests = Counter(
            "dray_http_requests", "HTTP requests answered", ["route", "status"], registry=self.registry
        )
        self._calls = Counter("dray_calls", "Calls that ended, by state", ["state"], registry=self.registry)
        self._blob_bytes = Counter(
            "dray_blob_bytes", "Bytes of values that came over HTTP", registry=self.registry
        )
        self._solved = Counter(
            "dray_solver_answers",
            "Batches that a solver was asked to place, and what became of them",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("used", "late", "failed"):
            self._solved.labels(outcome)
        self._call_children: dict[str, Counter] = {}
        self.count_blob = self._blob_bytes.inc
        self._request_children: dict[tuple[str, int], Counter] = {}

    def count_calls(self, state: str, count: int) -> None:
        """Count calls whose results were recorded together."""
        child = self._call_children.get(state)
        if child is None:
            child = self._call_children[state] = self._calls.labels(state)
        child.inc(count)

    def count_solved(self, outcome: str) -> None:
        """Count one question to the solver."""
        self._solved.labels(outcome).inc()

    def count_request(self, route: str, status: int) -> None:
        """Count one answer. `route` is a name of the table, never a path: paths would grow without end."""
        child = self._request_children.get((route, status))
        if child is None:
            child = self._request_children[route, status] = self._requests.labels(route, str(status))
        child.inc()

    def text(self) -> bytes:
        """Write everything in the text form that Prometheus scrapes."""
        return generate_latest(self.registry)

    def snapshot(self) -> dict[str, float]:
        """Give counters and gauges, and count and sum of what is timed, by name."""
        found = {}
        for metric in self.registry.collect():
            for sample in metric.samples:
                if sample.name.endswith(("_bucket", "_created")):
                    continue
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = float(sample.value)
        return found

    def _histogram(self, name: str, about: str, bounds_s: tuple[float, ...]) -> _Timing:
        timing = _Timing(name, about, bounds_s)
        self.registry.register(timing)
        return timing


class _Timing(Collector):
    """How often something took up to so long. Counted on the loop's thread alone, read on any."""

    def __init__(self, name: str, about: str, bounds_s: tuple[float, ...]) -> None:
        self._name, self._about, self._bounds_s = name, about, bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one more."""
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        bounds = [*(str(bound) for bound in self._bounds_s), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._about, buckets=buckets, sum_value=self._sum_s)


class _GaugeReader(Collector):
    def __init__(self, read: ReadGauges) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        depth = GaugeMetricFamily("dray_queue_depth", "Tasks and calls that wait, by queue", labels=["queue"])
        for queue, count in sorted(now.queue_depth.items()):
            depth.add_metric([queue], count)
        workers = GaugeMetricFamily("dray_workers", "Workers by state", labels=["state"])
        for state, count in sorted(now.workers.items()):
            workers.add_metric([state], count)
        yield depth
        yield workers
        yield GaugeMetricFamily("dray_sessions", "Open worker sessions", value=now.sessions)
        gateways = GaugeMetricFamily(
            "dray_gateway_sessions", "Open worker sessions at hubs that stand by, by hub", labels=["gateway"]
        )
        for gateway, count in sorted(now.gateways.items()):
            gateways.add_metric([gateway], count)
        yield gateways
        yield GaugeMetricFamily("dray_log_lag", "Turns committed and not yet in the rows", value=now.log_lag)
        yield GaugeMetricFamily(
            "dray_reports", "Reports of faults that nobody has dealt with", value=now.reports
        )
        attempts = CounterMetricFamily(
            "dray_attempts", "Attempts of tasks that ended, by phase", labels=["phase"]
        )
        for phase, count in sorted(now.attempts.items()):
            attempts.add_metric([phase], count)
        yield attempts
        prewarms = CounterMetricFamily(
            "dray_prewarm_hints",
            "Hints to workers to get snapshots and environments ready ahead of time, and what became of them",
            labels=["outcome"],
        )
        for outcome in ("sent", "used", "wasted", "lost"):
            prewarms.add_metric([outcome], now.prewarms.get(outcome, 0))
        yield prewarms
        certificate = GaugeMetricFamily(
            "dray_certificate_seconds", "Time until the hub's certificate ends, with TLS"
        )
        if now.certificate_s is not None:
            certificate.add_metric([], now.certificate_s)
        yield certificate
        yield from _site_gauges(now)
        yield from _mirror_gauges(now.mirror)


def _mirror_gauges(now: MirrorGauge | None) -> Iterator[Metric]:
    """Of a hub without a mirror there is nothing to tell."""
    states = GaugeMetricFamily(
        "dray_mirror", "1 for how the live view in Redis stands, with --redis", labels=["state"]
    )
    lag = GaugeMetricFamily("dray_mirror_lag_seconds", "How long something has waited to be written to Redis")
    rebuilds = CounterMetricFamily("dray_mirror_rebuilds", "Queues that were made anew in Redis")
    if now is not None:
        for state in MIRROR_STATES:
            states.add_metric([state], float(state == now.state))
        lag.add_metric([], now.lag_s)
        rebuilds.add_metric([], now.rebuilds)
    yield states
    yield lag
    yield rebuilds


def _site_gauges(now: Gauges) -> Iterator[Metric]:
    waits = GaugeMetricFamily(
        "dray_queue_wait_seconds", "How long the first of a queue has waited", labels=["queue"]
    )
    for queue, wait_s in sorted(now.queue_wait_s.items()):
        waits.add_metric([queue], wait_s)
    yield waits
    alarms = GaugeMetricFamily(
        "dray_alarms", "Alarms of the policy that are raised, by kind", labels=["kind"]
    )
    for kind, count in sorted(now.alarms.items()):
        alarms.add_metric([kind], count)
    yield alarms
    yield GaugeMetricFamily("dray_disk_bytes", "Size of the disk of the hub's home", value=now.disk[0])
    yield GaugeMetricFamily("dray_disk_free_bytes", "What is free of it", value=now.disk[1])
    files_free = GaugeMetricFamily(
        "dray_files_free_bytes", "What is free where output and large values are kept, if that is a folder"
    )
    if now.files_free is not None:
        files_free.add_metric([], now.files_free)
    yield files_free
    yield GaugeMetricFamily(
        "dray_files_ok",
        "1 while output and large values could be written when last tried",
        value=now.files_ok,
    )
    gpus = GaugeMetricFamily("dray_gpus", "GPUs by type, held by tasks or free", labels=["type", "state"])
    held: dict[str, float] = {}
    total = Tally(card.type for card in now.cards)
    for card in now.cards:
        held[card.type] = held.get(card.type, 0) + card.held
    for name in sorted(total):
        gpus.add_metric([name, "held"], held[name])
        gpus.add_metric([name, "free"], total[name] - held[name])
    yield gpus
    each = GaugeMetricFamily(
        "dray_gpu_held_ratio",
        f"How much of one GPU tasks hold; left out where there are more than {MOST_CARDS}",
        labels=["worker", "gpu"],
    )
    busy = GaugeMetricFamily(
        "dray_gpu_used_ratio",
        "For how much of its time one GPU that is held was busy when its worker last looked, where it can look",
        labels=["worker", "gpu"],
    )
    for card in now.cards if len(now.cards) <= MOST_CARDS else ():
        each.add_metric([card.worker, str(card.number)], card.held)
        if card.used is not None:
            busy.add_metric([card.worker, str(card.number)], min(1.0, card.used))
    yield each
    yield busy
