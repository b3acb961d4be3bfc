"""Workers at a hub that stands by: what the way through it costs, what it and the leader take, and how soon all
of them are served again after the leader was killed.

Three hubs on one PostgreSQL. All workers are connected to the two that stand by, and are simulated; what is said of
100,000 is reckoned from these, and says so.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import time

from tests.e2e.cluster import wait_for
from tests.e2e.site import Site

from benchmarks.cluster import cpu_seconds, resident_mib
from benchmarks.figures import Bar, Figure
from benchmarks.fleet import FleetProcesses, running_fleet_at
from benchmarks.progress import tell
from benchmarks.servers import running_postgres
from benchmarks.specs import array_spec
from dray.client.faces.hub import Hub, connect

LEASE_S, BEAT_S = 3.0, 10.0
AIM = 100_000
GATEWAYS = (1, 2)


def measure(quick: bool) -> dict[str, Figure]:
    workers, window_s, beat_s, jobs = (100, 2.0, 0.5, 40) if quick else (10_000, 3 * BEAT_S, BEAT_S, 400)
    with running_postgres() as server:
        site = Site(server.url("postgres"), 3, LEASE_S, MAX_CONNECTIONS="12000")
        try:
            site.start_all(agents=0)
            site.port = site.ports[0]
            added = _measure_way(site, jobs)
            return {"added": added, **_measure_fleet(site, workers, beat_s, window_s)}
        finally:
            site.close()


def _make_token(site: Site) -> str:
    answer = site.call("POST", "/tokens", {"scopes": ["admin"]})
    if answer.status >= 300:
        raise RuntimeError(f"no token was made: {answer}")
    return str(answer.json["token"])


# --- the way through -----------------------------------------------------------------------------------------------


def _measure_way(site: Site, jobs: int) -> Figure:
    """One worker at the leader, then the same at a gateway; there and back, twice, so that drift counts for both."""
    spans: dict[int, list[float]] = {0: [], 1: []}
    with connect(site.urls[0], _token_of(site), site.folder) as leader:
        for turn, hub in enumerate((0, 1, 1, 0)):
            with running_fleet_at(site.urls[hub], lambda: _make_token(site), 1, 1, 1.0, AIM + turn) as fleet:
                fleet.ask("work")
                fleet.ask("connect")
                spans[hub] += [_time_job(leader) for _ in range(jobs // 2)]
    direct, through = (statistics.median(spans[hub]) for hub in (0, 1))
    tell(f"a job at a worker of the leader {1000 * direct:.2f} ms, of a gateway {1000 * through:.2f} ms")
    return Figure(
        f"a job's way to a worker and back by a gateway ({jobs}), above the same at the leader, p50",
        "ms",
        1000 * (through - direct),
        bars=[Bar(at_most=1.0)],
        note=f"submit to end {1000 * through:.2f} ms by the gateway, {1000 * direct:.2f} ms at the leader",
    )


def _token_of(site: Site) -> str:
    return (site.homes[0] / "token").read_text().strip()


def _time_job(leader: Hub) -> float:
    began = time.perf_counter()
    leader.wait(leader.submit(["true"], cpus=0).id, 30)
    return time.perf_counter() - began


# --- many of them --------------------------------------------------------------------------------------------------


def _measure_fleet(site: Site, workers: int, beat_s: float, window_s: float) -> dict[str, Figure]:
    pids = {number: process.pid for number, process in enumerate(site.hubs) if process is not None}
    half = workers // 2
    with contextlib.ExitStack() as stack:
        fleets = [
            stack.enter_context(
                running_fleet_at(site.urls[hub], lambda: _make_token(site), half, 1, beat_s, half * place)
            )
            for place, hub in enumerate(GATEWAYS)
        ]
        empty, bare = resident_mib(pids[1]), _shares(pids, window_s / 3)[0]
        began = time.perf_counter()
        for fleet in fleets:
            fleet.ask("connect")
        joined_s = time.perf_counter() - began
        tell(f"{workers:,} workers registered by two gateways in {joined_s:.1f} s")
        time.sleep(min(beat_s, 5.0))  # what registering left behind is not what idling costs
        for fleet in fleets:
            fleet.ask("reset")
        share = _shares(pids, window_s)
        memory = (resident_mib(pids[1]) - empty) * 1024 / half
        beats, p99_ms = _sum(fleets, "beats"), max(fleet.ask("report")["beat_p99_ms"] for fleet in fleets)
        tell(f"shares of a core: {share}; {beats:,} heartbeats, p99 {p99_ms:.1f} ms")
        led_s, served_s, breaks = _kill_leader(site, fleets, workers)
    gateway = (share[1] + share[2]) * 10_000 / workers
    leader = bare + (share[0] - bare) * AIM / workers
    held = f"{beats:,} heartbeats answered in {window_s:g} s, p99 {p99_ms:.1f} ms; {memory:.1f} KiB a worker"
    return {
        "gateway": Figure(
            "gateway with 10,000 idle workers, a heartbeat every 10 s",
            "% of a core",
            gateway,
            bars=[Bar(at_most=30.0)],
            note=f"two gateways with {half:,} each, their shares added; {held}",
        ),
        "leader": Figure(
            f"leader with {AIM:,} idle workers over gateways",
            "% of a core",
            leader,
            bars=[Bar(at_most=20.0)],
            note=f"reckoned: {bare:.2f} % without a worker, {share[0]:.2f} % with {workers:,}, the difference times "
            f"{AIM // workers}",
        ),
        "served": Figure(
            f"leader killed (-9), {workers:,} workers behind gateways: until each was given a task",
            "s",
            served_s,
            bars=[Bar(at_most=15.0)],
            note=f"another hub led after {led_s:.2f} s; {breaks} connections of workers broke",
        ),
        "served_all": Figure(
            f"the same with {AIM:,} workers",
            "s",
            led_s + (served_s - led_s) * AIM / workers,
            note=f"reckoned: {led_s:.2f} s until another leads, the rest times {AIM // workers}; all on two cores",
        ),
    }


def _shares(pids: dict[int, int], window_s: float) -> dict[int, float]:
    """What each hub takes of a core, in per cent."""
    before, began = {hub: cpu_seconds(pid) for hub, pid in pids.items()}, time.perf_counter()
    time.sleep(window_s)
    spent_s = time.perf_counter() - began
    return {hub: 100 * (cpu_seconds(pid) - before[hub]) / spent_s for hub, pid in pids.items()}


def _kill_leader(site: Site, fleets: list[FleetProcesses], workers: int) -> tuple[float, float, int]:
    """Work for everybody is handed in and held; the leader dies; the next one gives it out."""
    job = site.call("POST", "/jobs", array_spec(workers, hold=True)).json["id"]
    began = time.perf_counter()
    site.signal_hub(0, signal.SIGKILL)
    wait_for(lambda: site.find_leader(but=0) >= 0, "another hub leads")
    led_s = time.perf_counter() - began
    site.port = site.ports[site.find_leader(but=0)]
    answer = site.call("POST", f"/jobs/{job}/release")
    if answer.status >= 300:
        raise RuntimeError(f"the release was answered {answer}")
    wait_for(lambda: _sum(fleets, "held") == workers, "every worker has a task", 120)
    served_s = time.perf_counter() - began
    return led_s, served_s, _sum(fleets, "breaks")


def _sum(fleets: list[FleetProcesses], name: str) -> int:
    return sum(int(fleet.ask("report")[name]) for fleet in fleets)
