"""What a person at a terminal sees of a map: a bar, and what Ctrl-C leaves."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dray
from dray.client.calls.progress import tell_rate
from dray.client.faces.private_hub import PrivateHub

LIMIT_S = 60.0
SHOW, HIDE = b"\x1b[?25h", b"\x1b[?25l"


class Terminal:
    """A program on a terminal of its own, which is also the one that its interrupts come from."""

    def __init__(self, *words: str, **env: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        self._line, self._far = pty.openpty()
        # The first terminal that the head of a session opens becomes its own.
        opening = ["sh", "-c", 'tty=$1; shift; exec "$@" <"$tty" >"$tty" 2>&1', "sh", os.ttyname(self._far)]
        self._program = subprocess.Popen(
            [*opening, sys.executable, *words],
            env={**kept, "TERM": "xterm", "COLUMNS": "100", "PYTHON_BASIC_REPL": "1", **env},
            start_new_session=True,
        )
        self.seen = b""

    def read(self) -> bool:
        """Take what was written; False where nothing comes any more."""
        if not select.select([self._line], (), (), 0.1)[0]:
            return self._program.poll() is None
        self.seen += os.read(self._line, 65536)
        return True

    def read_until(self, text: bytes) -> bytes:
        """Read on until a text appears; gives what came up to its end and takes that out."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.seen:
            assert self.read(), self.seen
            assert time.monotonic() < deadline, self.seen
        head, _, self.seen = self.seen.partition(text)
        return head + text

    def type(self, text: bytes) -> None:
        os.write(self._line, text)

    def close(self) -> None:
        self._program.kill()
        self._program.wait()
        os.close(self._line)
        os.close(self._far)


@pytest.fixture
def terminal(cluster: PrivateHub) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(*words, DRAY_HOME=str(cluster.home)))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


SCRIPT = """
import dray, time
hub = dray.connect()
for value in hub.map(lambda x: time.sleep(0.3) or x, range(12), name="naps"):
    if value % 5 == 0:
        print("value", value)
print("after it")
"""


def test_a_bar_with_rate_that_ends_full(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    screen = terminal(str(tmp_path / "script.py"))
    written = screen.read_until(b"after it\r\n")
    lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", written).replace(b"\r\n", b"\n").split(b"\n")
    # What stands on the screen in the end: each line as it was written last.
    shown = [line.rpartition(b"\r")[2].decode() for line in lines]
    assert shown.index("value 5") < shown.index("value 10") < shown.index("after it")
    assert re.fullmatch(r"naps ━+ 12/12 [0-9.]+/s 0:00:0\d", shown[shown.index("after it") - 1])
    assert written.rfind(SHOW) > written.rfind(HIDE) >= 0


def test_an_interrupt_stops_the_map_and_gives_the_terminal_back(
    terminal: Callable[..., Terminal], hub: dray.Hub
) -> None:
    screen = terminal("-i", "-q", "-c", "import dray, time; hub = dray.connect(); prompt = 1")
    screen.read_until(b">>> ")
    screen.type(b"results = hub.map(time.sleep, [0.2] * 500)\n")
    screen.read_until(b">>> ")
    screen.type(b"print('<' + results.job + '>')\n")
    screen.read_until(b"\n<")
    job = screen.read_until(b">")[:-1].decode()
    screen.read_until(b">>> ")
    screen.type(b"list(results)\n")
    written = screen.read_until(b"sleep \x1b[")
    screen.type(b"\x03")
    written += screen.read_until(b"the rest was cancelled")
    assert b"KeyboardInterrupt" in written
    assert written.rfind(SHOW) > written.rfind(HIDE) >= 0
    assert hub.wait(job, LIMIT_S).state is dray.JobState.KILLED
    screen.read_until(b">>> ")
    screen.type(b"next(results)\n")
    assert b"StopIteration" in screen.read_until(b">>> ")


@pytest.mark.parametrize(
    ("rate", "text"), [(0.256, "0.256/s"), (9.81, "9.81/s"), (123.4, "123/s"), (12345.6, "12,346/s")]
)
def test_rates_are_told_in_plain_figures(rate: float, text: str) -> None:
    assert tell_rate(rate) == text
