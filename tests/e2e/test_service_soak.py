"""The service soak, small: a few rounds end clean, and what watches it can tell when something is wrong."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster
from tools import service_soak_watch
from tools.kill_soak_kills import TIMERS
from tools.service_soak import Rounds
from tools.service_soak_load import BAD, NAMES, Book, People
from tools.service_soak_watch import Watch

ROOT = Path(__file__).parents[2]


def test_two_rounds_of_kills_leave_services_as_they_were_asked_for(tmp_path: Path) -> None:
    """The choices are the same each time; `./dev soak --services` draws new ones, and many more."""
    out = tmp_path / "soak.json"
    kills = ("--rounds", "2", "--hub", "1", "--agent", "1", "--supervisor", "1", "--task", "1")
    faults = ("--full", "0", "--frozen", "1", "--pids", "0")
    bounds = ("--seed", "1", "--end-s", "60", "--out", str(out))
    done = subprocess.run(
        [sys.executable, "tools/service_soak.py", *kills, *faults, *bounds],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    totals = json.loads(out.read_text())["totals"]
    assert all(totals["kills"][kind] >= 1 for kind in ("hub", "agent", "supervisor", "task", "frozen"))
    assert (totals["anomalies"], totals["calm_changes"]) == (0, 5 * len(NAMES) + len(BAD))
    assert totals["attempts"] > 0
    assert totals["endpoints"] > 0


def test_the_watch_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(TIMERS)
    try:
        book = Book(cluster.folder)
        killer = Rounds(cluster, book.lines, random.Random(1))
        killer.start_all()
        people = People(cluster, book, 1)
        for name in NAMES:
            people.make(name, 2)
        honest = Watch(cluster, book, killer)
        assert honest.wait_ready(people, 60)
        honest.check_whole()
        honest.look()
        honest.check_lines()
        assert honest.anomalies == []
        _tamper(cluster, book)
        watch = Watch(cluster, book, killer)
        watch._patience_s = 0.5
        monkeypatch.setattr(service_soak_watch, "SILENT_S", -1.0)
        monkeypatch.setattr(service_soak_watch, "ask_who", lambda port: ("somebody else", str(port)))
        watch.look()
        watch.check_whole()
        watch.check_calm(people, 0.0)
        watch.check_lines()
        kinds = {anomaly.kind for anomaly in watch.anomalies}
        assert kinds >= {
            "forgotten",
            "endpoint",
            "stray",
            "unavailable",
            "unfinished",
            "mixed",
            "port",
            "ran twice",
            "contradiction",
        }
        assert any("of a service that was stopped" in anomaly.text for anomaly in watch.anomalies)
    finally:
        cluster.close()


def _tamper(cluster: Cluster, book: Book) -> None:
    """A size that nobody has, a process of a service that was stopped, lines that contradict each other."""
    known = book.wanted[NAMES[0]]
    assert known is not None
    book.wanted[NAMES[0]] = known[0], 7
    stray = cluster.spawn(["sleep", "300"], cluster.folder / "stray.out", {"DRAY_ATTEMPT_UID": "a-stray"})
    book.stopped["j-gone"] = 0.0
    first = book.lines.read_text().splitlines()[0]
    book.lines.write_text(
        f"{first}\n{first}\nj-gone a-stray {stray.pid} w1 begin\nj-gone a-stray {os.getpid()} w1 clash\n"
    )
    book.contradict("something that cannot be")
