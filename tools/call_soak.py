"""`./dev soak --calls`: rounds of kill -9 of hub, agents, runners and clients during maps, and the account after them.

Beside the kills disks are full, processes stand still (SIGSTOP) and workers run out of pids, each for a while.
Every call that the hub took must have exactly one recorded result, the right one, and whatever a client heard must be
what is recorded. A client that is killed leaves its map behind: the hub goes on with it, and its results are read from
the record by another program.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

import psutil  # noqa: E402 - after the path, with the others
from tests.e2e.cluster import Cluster, wait_for  # noqa: E402 - only found after the lines above
from tools.call_soak_client import unload  # noqa: E402 - only found after the lines above
from tools.kill_soak_kills import AGENTS, FAULTS, TIMERS, Killer  # noqa: E402 - only found after the lines above
from tools.soak_faults import Machine  # noqa: E402 - only found after the lines above

import dray  # noqa: E402 - after the path, with the others
from dray.functions.values import unpack  # noqa: E402 - after the path, with the others
from dray.hub.calls.results import rows_of  # noqa: E402 - after the path, with the others
from dray.hub.store.base import ResultsChunk  # noqa: E402 - after the path, with the others

RESULTS = ROOT / "benchmarks" / "results" / "call_soak.json"
CLIENT = Path(__file__).with_name("call_soak_client.py")
KINDS = ("hub", "agent", "runner", "client", *FAULTS)
CLIENTS = 2
SETTINGS = {**TIMERS, "OPEN_IDLE_S": "3.0"}
END_S = 180.0
KEPT_RUNS = 40


class Map(NamedTuple):
    """One map that a client began."""

    job: str
    size: int
    salt: int


class Ledger:
    """What all clients wrote down."""

    def __init__(self, folder: Path) -> None:
        self.maps: dict[str, Map] = {}
        self.recorded: set[str] = set()
        self.heard: dict[tuple[str, int], int] = {}
        for path in sorted(folder.glob("client-*[0-9]")):
            for line in path.read_text().splitlines():
                self._read(line.split())

    def _read(self, words: list[str]) -> None:
        match words:
            case ["job", job, size, salt]:
                self.maps[job] = Map(job, int(size), int(salt))
            case ["recorded", job]:
                self.recorded.add(job)
            case ["heard", job, index, value] if value.isdigit():
                self.heard[job, int(index)] = int(value)


class Rounds(Killer):
    """Kills of runners and clients beside those of hub and agents."""

    frozen = ("hub", "agent", "supervisor", "runner")

    def __init__(self, cluster: Cluster, rng: random.Random, machine: Machine) -> None:
        super().__init__(cluster, cluster.folder / "lines", rng, machine=machine)
        (cluster.folder / "lines").touch()
        self._chance = rng
        self._clients: list[tuple[Path, subprocess.Popen[bytes]]] = []
        self._numbers = 0

    def start_all(self) -> None:
        self.cluster.start_hub()
        for name in AGENTS:
            # One hands large values over as files, the others send them.
            self._adopt(name, self.cluster.start_agent(name, 1, near=name == AGENTS[0]))
        while len(self._clients) < CLIENTS:
            self._start_client()

    def _start_client(self) -> None:
        self._numbers += 1
        folder = self.cluster.folder
        words = [
            sys.executable,
            "-P",
            str(CLIENT),
            str(folder / f"client-{self._numbers}"),
            str(self._numbers),
        ]
        # By name: a client that finds no hub by itself would start a private one.
        where = {"DRAY_HUB": self.cluster.url, "DRAY_TOKEN": self.cluster.token}
        log = folder / f"client-{self._numbers}.log"
        self._clients.append((log, self.cluster.spawn(words, log, where)))

    def kill(self, kind: str, span_s: float) -> None:
        """Kill one of a kind some time within the span."""
        if kind in ("hub", "agent", *FAULTS):
            self.run_round(span_s, [kind])
            return
        early_s = self._chance.uniform(0, span_s)
        self.run_round(early_s, [])
        (self._kill_client if kind == "client" else self._kill_runner)()
        self.run_round(span_s - early_s, [])

    def _kill_client(self) -> None:
        self._end(*self._clients.pop(self._chance.randrange(len(self._clients))))
        self.kills["client"] += 1
        self._start_client()

    def _kill_runner(self) -> None:
        found = list(runners_of(self.cluster))
        if found:
            self._chance.choice(found).send_signal(signal.SIGKILL)
            self.kills["runner"] += 1

    def _find(self, role: str, name: str) -> int | None:
        if role != "runner":
            return super()._find(role, name)
        found = list(runners_of(self.cluster))
        return self._chance.choice(found).pid if found else None

    def stop_clients(self) -> None:
        """End what was begun by clients as a crash would."""
        for log, client in self._clients:
            self._end(log, client)

    def _end(self, log: Path, client: subprocess.Popen[bytes]) -> None:
        if client.poll() is not None:
            said = log.read_text(errors="replace")[-500:]
            self.surprises.append(f"a client ended by itself with {client.returncode}: {said}")
        client.kill()
        client.wait()


def runners_of(cluster: Cluster) -> Iterator[psutil.Process]:
    """The runner processes of a cluster, found by its folder, which is their HOME."""
    for process in psutil.process_iter():
        try:
            if any("dray/runner" in word for word in process.cmdline()) and str(cluster.folder) in str(
                process.environ()
            ):
                yield process
        except psutil.Error:
            continue


# --- the account ------------------------------------------------------------------------------------------------------


def settle(cluster: Cluster, ledger: Ledger) -> tuple[list[str], Counter[str]]:
    """Wait until all maps have ended, then compare what was told, what is recorded and what should be."""
    anomalies: list[str] = []
    counts: Counter[str] = Counter()
    with dray.connect(cluster.url, cluster.token, cluster.home) as hub:
        for one in ledger.maps.values():
            # Killed before its first calls were taken: there is no such job, and nobody was told otherwise.
            if cluster.call("GET", f"/jobs/{one.job}").status != 200:
                if one.job in ledger.recorded:
                    anomalies.append(f"{one.job}: the hub had taken it, and does not know it")
                counts["never_taken"] += 1
                continue
            try:
                status = hub.wait(one.job, END_S)
            except TimeoutError:
                document = cluster.call("GET", f"/jobs/{one.job}").json
                anomalies.append(f"{one.job}: stuck, {document['tasks']}")
                continue
            counts["maps"] += 1
            anomalies += judge(one, ledger, status, hub.recorded(one.job), cluster.home / "blobs", counts)
    return anomalies, counts


def judge(
    one: Map, ledger: Ledger, status: Any, rows: list[Any], blobs: Path, counts: Counter[str]
) -> Iterator[str]:
    """Hold one map against its record."""
    total = status["tasks"]["total"]
    if one.job in ledger.recorded and total != one.size:
        yield f"{one.job}: {one.size} calls were taken, the record has {total}"
    if len(rows) != total:
        yield f"{one.job}: {len(rows)} results of {total} calls"
    counts["calls"] += total
    for row in rows:
        index = int(row.task_id.rpartition("/")[2])
        if row.state != "succeeded":
            yield f"{row.task_id}: {row.state} {row.exit_class} {row.error}"
            continue
        value = unload(unpack(row.value if isinstance(row.value, bytes) else _read_blob(blobs, *row.value)))
        counts["results"] += 1
        counts["large"] += not isinstance(row.value, bytes)
        if value != index * index + one.salt:
            yield f"{row.task_id}: recorded {value}, right is {index * index + one.salt}"
        if ledger.heard.get((one.job, index), value) != value:
            yield f"{row.task_id}: heard {ledger.heard[one.job, index]}, recorded {value}"


def _read_blob(folder: Path, digest: str, size: int) -> bytes:
    data = (folder / digest[:2] / digest).read_bytes()
    if (hashlib.sha256(data).hexdigest(), len(data)) != (digest, size):
        return b""
    return data


def count_twice(cluster: Cluster) -> list[str]:
    """Results that stand in the store more than once."""
    store = cluster.home / "hub.sqlite"
    seen: Counter[tuple[str, int]] = Counter()
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as rows:
        for row in rows.execute("SELECT job_id, lo, hi, worker, lane, blob FROM call_results"):
            chunk = ResultsChunk(*row)
            seen.update((chunk.job_id, found.index) for found in rows_of(chunk, 0, 1 << 31))
    return [f"{job}/{index}: recorded {count} times" for (job, index), count in seen.items() if count > 1]


# --- the run ----------------------------------------------------------------------------------------------------------


def read_words(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev soak --calls", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=40, help="kills and faults in all, as many of each kind"
    )
    parser.add_argument("--round-s", default="0.5-2.0", help="seconds of a round, LOW-HIGH")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file that the run is added to")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run rounds, settle the account, report. 0 only where nothing was found."""
    options = read_words(argv)
    seed = options.seed or random.SystemRandom().randrange(1, 10**6)
    rng = random.Random(seed)
    low, high = (float(part) for part in options.round_s.split("-"))
    began = time.monotonic()
    cluster = Cluster(SETTINGS)
    machine = Machine(cluster, AGENTS)
    try:
        for note in machine.notes:
            print(note)
        rounds = Rounds(cluster, rng, machine)
        rounds.start_all()
        kinds = [kind for kind in KINDS if kind != "pids" or machine.has_pids]
        plan = [kinds[number % len(kinds)] for number in range(options.rounds)]
        rng.shuffle(plan)
        for number, kind in enumerate(plan, 1):
            rounds.kill(kind, rng.uniform(low, high))
            if number % 10 == 0:
                told = " ".join(f"{name} {rounds.kills[name]}" for name in KINDS)
                print(f"[{time.monotonic() - began:6.1f} s] round {number}/{len(plan)}: {told}", flush=True)
        rounds.stop_clients()
        rounds.settle()
        ledger = Ledger(cluster.folder)
        anomalies, counts = settle(cluster, ledger)
        wait_for(lambda: cluster.stop_hub() == 0, "the hub stops")
        anomalies += [*count_twice(cluster), *rounds.surprises]
        report = {
            "ended_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "seed": seed,
            "seconds": round(time.monotonic() - began, 1),
            "kills": {kind: rounds.kills[kind] for kind in KINDS},
            **counts,
            "heard": len(ledger.heard),
            "anomalies": anomalies,
        }
        print(json.dumps(report, indent=1))
        save(options.out, report)
        return 1 if anomalies or not counts["results"] else 0
    finally:
        machine.close()
        cluster.close()


def save(path: Path, report: dict[str, Any]) -> None:
    """Add a run to the file of runs."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = [*runs, report][-KEPT_RUNS:]
    kills = {kind: sum(run["kills"].get(kind, 0) for run in runs) for kind in KINDS}
    totals = {
        name: sum(run.get(name, 0) for run in runs) for name in ("maps", "calls", "results", "large", "heard")
    }
    found = sum(len(run["anomalies"]) for run in runs)
    path.write_text(json.dumps({"kills": kills, **totals, "anomalies": found, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
