"""The kill soak, small: a few rounds of kill -9 end with a clean account, and the account can tell an unclean one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster, wait_for
from tools.kill_soak_account import Account, Task
from tools.kill_soak_kills import AGENTS, TIMERS, Killer
from tools.kill_soak_load import KINDS, Ledger, Load

ROOT = Path(__file__).parents[2]


def test_two_rounds_of_kills_leave_a_clean_account(tmp_path: Path) -> None:
    """The choices are the same each time; `./dev soak --kill` draws new ones, and many more."""
    out = tmp_path / "soak.json"
    kills = ("--rounds", "2", "--agent", "1", "--supervisor", "1", "--task", "1", "--round-s", "0.8-1.2")
    faults = ("--full", "1", "--frozen", "1", "--pids", "0")
    bounds = ("--seed", "1", "--end-s", "45", "--out", str(out))
    words = [sys.executable, "tools/kill_soak.py", *kills, *faults, *bounds]
    done = subprocess.run(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    totals = json.loads(out.read_text())["totals"]
    # A kill may take the agent along with its supervisor: at least what was asked for.
    wanted = {"hub": 2, "agent": 1, "supervisor": 1, "task": 1, "full": 1, "frozen": 1}
    assert all(totals["kills"][kind] >= number for kind, number in wanted.items())
    assert totals["acknowledged"] == totals["jobs"] > 0
    assert totals["tasks"] >= totals["jobs"]
    assert totals["anomalies"] == 0


@pytest.fixture(scope="module")
def calm() -> Iterator[tuple[Cluster, Ledger, Killer]]:
    """A cluster that ran a little load without any kill."""
    cluster = Cluster(TIMERS)
    try:
        ledger = Ledger(cluster.folder)
        killer = Killer(cluster, ledger.lines, random.Random(1))
        killer.start_all()
        load = Load(cluster, ledger, 1)
        for kind in KINDS:
            load.submit(kind, 0.2, f"key-{kind.name}")
        assert Account(cluster, ledger, killer).wait_for_end(60)
        yield cluster, ledger, killer
    finally:
        cluster.close()


def test_the_account_finds_what_is_wrong(calm: tuple[Cluster, Ledger, Killer]) -> None:
    cluster, ledger, killer = calm
    honest = Account(cluster, ledger, killer)
    honest.settle()
    assert honest.anomalies == []
    ended = {kind: _ended_well(honest, kind) for kind in ("quick", "fenced", "once")}
    quick, fenced, once = (ended[kind] for kind in ("quick", "fenced", "once"))
    lines = ledger.lines.read_text().splitlines()
    lines.remove(next(line for line in lines if line.startswith(quick.id) and line.endswith("end")))
    lines += [f"{fenced.id} 1-later 1 w1 begin", f"{fenced.id} {fenced.attempts[0]['uid']} 1 w1 end"]
    lines += [f"{once.id} 1-again 1 w1 begin"]
    ledger.lines.write_text("\n".join(lines) + "\n")
    ledger.keys["never-recorded"] = "j-none"
    ledger.waited[quick.id] = "failed"
    ledger.cancelled[quick.id] = True
    ledger.finals[quick.id] = ("failed",)
    killer.surprises.append("something ended")
    stranger = cluster.spawn(["sleep", "300"], cluster.folder / "stranger.out")
    tampered = Account(cluster, ledger, killer, patience_s=0.5)
    tampered.settle()
    found = {(anomaly.kind, anomaly.task) for anomaly in tampered.anomalies}
    assert {("result", quick.id), ("changed", quick.id), ("cancel", quick.id)} <= found
    assert {("overlap", fenced.id), ("ran twice", fenced.id), ("unknown", fenced.id)} <= found
    assert {("unknown", once.id), ("lost", "j-none"), ("surprise", ""), ("contradiction", "")} <= found
    assert any(a.kind == "left over" and str(stranger.pid) in a.text for a in tampered.anomalies)


def test_what_is_overdue_after_the_rounds_is_still_done(calm: tuple[Cluster, Ledger, Killer]) -> None:
    cluster, ledger, _ = calm
    killer = Killer(cluster, ledger.lines, random.Random(3))
    # A round without length leaves its kills undone, and they are long overdue when the rounds are over.
    killer.run_round(0.0, ["agent", "agent", "supervisor"])
    due = time.monotonic()
    wait_for(lambda: time.monotonic() > due + 0.05, "they are overdue")
    _settle(killer)
    assert (killer.kills["agent"] >= 2, killer.kills["supervisor"], killer.surprises) == (True, 1, [])
    assert all(cluster.wait_worker(name) for name in AGENTS)


def test_a_kill_that_finds_nothing_is_given_up(calm: tuple[Cluster, Ledger, Killer]) -> None:
    cluster, ledger, _ = calm
    killer = Killer(cluster, ledger.lines, random.Random(1), settle_s=0.6)
    killer.run_round(0.0, ["task"])
    _settle(killer)
    assert killer.kills["task"] == 0
    assert killer.surprises == ["a task was to be killed, and there was none for 0.6 s"]


def _settle(killer: Killer) -> None:
    """Settle in a thread: a killer that never comes to an end must not take the test run along."""
    thread = threading.Thread(target=killer.settle, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), f"still at it: {killer.timeline}"


def _ended_well(account: Account, kind: str) -> Task:
    good = [t for t in account.tasks.values() if t.kind.name == kind and t.record["state"] == "succeeded"]
    assert good, f"no {kind} job succeeded"
    return good[0]
