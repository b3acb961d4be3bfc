"""`dray top` on a terminal of its own: what it shows, what keys do, and what is left of it at the end."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from tests.hub.asking import ask

from dray.cli.base.hub import Hub
from dray.cli.machines.top import Look, draw
from dray.cli.main import main
from dray.testing import MockWorker, RunningHub, make_capability, make_slots, make_spec, running_hub

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def site() -> Iterator[RunningHub]:
    """Two machines with cards, one of them held, and a line behind them."""
    with (
        running_hub(suspect_s=600, unknown_s=700, lost_s=800) as hub,
        MockWorker(hub.url, hub.token, "alpha", make_capability(gpus=2), make_slots(2)) as alpha,
        MockWorker(hub.url, hub.token, "beta", make_capability(gpus=1), make_slots(1)) as beta,
    ):
        beta.register()
        alpha.register()
        held = ask(hub, "POST", "/jobs", make_spec("held", name="held", gpu_count=2))[1]["id"]
        alpha.ready()
        alpha.accept(alpha.assigned(30))
        for number in range(30):
            ask(hub, "POST", "/jobs", make_spec(f"w{number}", id=f"w{number}", name="waits", gpu_count=4))
        hub.held = held  # type: ignore[attr-defined]  # for the tests below
        yield hub


@pytest.fixture
def hub(site: RunningHub, speak_to: Callable[[RunningHub], RunningHub]) -> RunningHub:
    return speak_to(site)


class Terminal:
    """`dray top` on a terminal of so many columns and lines, and what stands on it."""

    def __init__(self, columns: int, lines: int) -> None:
        self._line, far = pty.openpty()
        self.resize(columns, lines)
        words = [sys.executable, "-m", "dray.cli.main", "top", "--interval", "0.2"]
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.program = subprocess.Popen(
            words, stdin=far, stdout=far, stderr=far, env={**environment, "TERM": "xterm"}
        )
        self._far, self.seen = far, ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._line, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._line, keys.encode())

    def wait_for(self, *words: str) -> list[str]:
        """Read on until a whole frame has all the words; gives its lines."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            frames = self.seen.split("\x1b[H")[1:]
            for frame in [frame for frame in frames if frame.endswith("\x1b[J")][-1:]:
                lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).split("\r\n")
                if all(any(word in line for line in lines) for word in words):
                    return lines
            assert time.monotonic() < deadline, (words, self.seen[-3000:])
            self.read(0.1)

    def read(self, wait_s: float) -> None:
        if select.select([self._line], (), (), wait_s)[0]:
            self.seen += os.read(self._line, 65536).decode(errors="replace")

    def quit(self) -> int:
        self.press("q")
        deadline = time.monotonic() + LIMIT_S
        while self.program.poll() is None:
            assert time.monotonic() < deadline
            self.read(0.05)
        self.read(0.05)
        return int(self.program.returncode)

    def close(self) -> None:
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        os.close(self._line)
        os.close(self._far)


@pytest.fixture
def terminal(hub: RunningHub) -> Iterator[Terminal]:
    opened = Terminal(80, 24)
    yield opened
    opened.close()


def test_it_fits_80_by_24_fills_more_and_leaves_the_terminal_as_it_was(hub: Any, terminal: Terminal) -> None:
    lines = terminal.wait_for("alpha", "beta", "waits", "q quit")
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert "2 ready" in lines[0] or "1 ready" in lines[0]
    assert "GPUs 2/3 (67 %)" in lines[0]
    assert re.search(r"1 running, 30 waiting   a minute [\d.]+ starts, 0 ends", lines[1])
    (alpha,) = [line for line in lines if line.startswith("alpha")]
    assert "2/2" in alpha
    assert "1/2" in alpha, "slots in use"
    assert hub.held in alpha
    few = sum("waits" in line for line in lines)
    terminal.resize(200, 60)
    lines = terminal.wait_for("w25", "q quit")
    assert len(lines) == 60
    assert sum("waits" in line for line in lines) > few
    assert terminal.quit() == 0
    assert terminal.seen.rstrip().endswith("\x1b[?1049l"), "the screen from before is back"


def test_keys_sort_filter_explain_and_cancel_after_a_question(hub: Any, terminal: Terminal) -> None:
    terminal.wait_for("workers by use")
    terminal.press("s")
    terminal.wait_for("workers by gpus")
    terminal.press("/")
    terminal.wait_for("filter: _")
    terminal.press("bet")
    terminal.wait_for("filter: bet_")
    terminal.press("\r")
    lines = terminal.wait_for("filter 'bet': 1 of 1")
    assert not any(line.startswith("alpha") for line in lines)
    terminal.press("\x1b[B")
    terminal.press("\r")
    assert any("w0" in line for line in terminal.wait_for("any key goes back"))
    terminal.press("x")
    terminal.wait_for("q quit")
    terminal.press("c")
    terminal.wait_for("cancel w0? y/N")
    terminal.press("n")
    terminal.wait_for("q quit")
    assert ask(hub, "GET", "/jobs/w0")[1]["state"] == "pending"
    terminal.press("c")
    terminal.wait_for("cancel w0? y/N")
    terminal.press("y")
    terminal.wait_for("w0: cancel requested")
    assert ask(hub, "GET", "/jobs/w0")[1]["state"] == "killed"
    assert terminal.quit() == 0


def test_without_a_terminal_it_is_plain_text_once(hub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--sort", "name"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert said.index("alpha") < said.index("beta")
    assert "w1 " in said


def test_status_tells_cards_in_use_of_all_and_the_oldest_wait(
    hub: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status"]) == 0
    lines = dict(re.split(" {2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["gpus"] == "2 of 3 held"
    assert main(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["oldest_wait_s"] > 0


def test_others_jobs_are_counted_and_not_named(hub: Any) -> None:
    status, seen = ask(hub, "GET", "/overview", token=hub.make_token("eve", ["read"]))
    assert status == 200
    (alpha,) = [row for row in seen["rows"] if row["id"] == "alpha"]
    assert (alpha["active_jobs"], alpha["holders"], alpha["others"]) == (1, [], 1)
    assert (seen["users"], seen["heads"], seen["matched"]) == ([], [], 2)
    assert ask(hub, "GET", "/overview?sort=size")[0] == 400


def row(name: str, *tasks: str) -> dict[str, Any]:
    offer = {"status": "ready", "gpus_held": 0, "gpu_count": 0, "gpu_type": "", "total_slots": 64}
    holders = [{"user": "ann", "task_id": task} for task in tasks]
    return {
        "id": name,
        **offer,
        "active_jobs": len(tasks),
        "holders": holders,
        "others": 0,
        "state_detail": "",
    }


def test_tasks_of_one_job_are_counted_and_every_running_job_is_listed_where_there_is_room() -> None:
    running = [{"id": f"run{number}", "state": "running"} for number in range(9)]
    heads = [{"id": f"wait{number}", "state": "pending"} for number in range(9)]
    found = {
        "rows": [row("w1", "a/1", "a/2", "b", "c/7") | {"fake": True}],
        "matched": 1,
        "queues": [],
        "workers": {"ready": 1},
        "slots": {"in_use": 4, "total": 64},
        "gpus": {"held": 0, "total": 0},
        "users": [],
        "running": running,
        "heads": heads,
    }
    look = Look(cast("Hub", None), "use", "")  # what was found is given: nobody is asked
    roomy = draw(look, found, 120, 40)
    assert any("ann: a ×2 b c/7" in line and line.rstrip().endswith("fake") for line in roomy)
    assert all(any(job["id"] in line for line in roomy) for job in running + heads)
    soon = {
        **found,
        "heads": [heads[0] | {"estimate": {"message": "starts in about 5m"}, "reason": "no room"}],
    }
    assert any(
        "wait0" in line and "starts in about 5m; no room" in line for line in draw(look, soon, 120, 40)
    )
    alarmed = {**found, "alarms": [{"text": "worker w9 is away for 7m"}, {"text": "the disk is full"}]}
    told = draw(look, alarmed, 120, 17)
    assert told[3] == "alarms  2: worker w9 is away for 7m; the disk is full"
    assert len(told) <= 17, "the line of alarms is taken from the lists"
    assert not any(line.startswith("alarms") for line in roomy)
    narrow = "\n".join(draw(look, found, 120, 17))
    assert ("run3" in narrow, "wait3" in narrow, "wait8" in narrow) == (True, True, False)
