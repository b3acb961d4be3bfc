"""Connections that nobody vouched for: they lock nobody out and cost no output, however many there are."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.errors import Overloaded
from dray.hub.access.connections import SLOW_READER_BYTES, SLOW_READER_S, Connections, ReaderWatch
from dray.testing import MockWorker

FILES = 256


class Wire:
    """A connection that remembers how it ended."""

    def __init__(self) -> None:
        self.aborted, self.waiting = False, 0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.waiting


def test_the_oldest_stranger_of_an_address_goes_first() -> None:
    connections = Connections(FILES)
    most = connections.of_peer_most
    wires = [Wire() for _ in range(most + 2)]
    elsewhere = Wire()
    connections.enter(elsewhere, "10.0.0.9")
    for wire in wires:
        connections.enter(wire, "10.0.0.1")
    assert [wire.aborted for wire in wires] == [True, True, *[False] * most]
    assert not elsewhere.aborted
    assert connections.strangers == most + 1


def test_whoever_showed_a_token_stays_and_strangers_in_all_are_few() -> None:
    connections = Connections(FILES)
    known = Wire()
    connections.enter(known, "10.0.0.1")
    connections.admit(known, "t1")
    wires = [Wire() for _ in range(500)]
    for number, wire in enumerate(wires):
        connections.enter(wire, f"10.0.{number}.1")
    assert not known.aborted
    assert connections.strangers == connections.strangers_most
    assert len(connections) <= connections.most < FILES


def test_one_token_has_half_of_all_connections_at_most() -> None:
    connections = Connections(FILES)
    wires = [Wire() for _ in range(connections.of_token_most)]
    for wire in wires:
        connections.enter(wire, "10.0.0.1")
        connections.admit(wire, "t1")
        connections.admit(wire, "t1")
    more = Wire()
    connections.enter(more, "10.0.0.1")
    with pytest.raises(Overloaded, match="token t1 holds"):
        connections.admit(more, "t1")
    connections.admit(more, "t2")
    connections.leave(wires[0])
    connections.admit(more, "t1")


def test_what_has_left_is_counted_no_more() -> None:
    connections = Connections(FILES)
    wires = [Wire() for _ in range(8)]
    for number, wire in enumerate(wires):
        connections.enter(wire, "10.0.0.1")
        if number % 2:
            connections.admit(wire, "t1")
    for wire in wires:
        connections.leave(wire)
        connections.leave(wire)
    assert (len(connections), connections.strangers) == (0, 0)
    assert connections._of_peer == {}
    assert connections._of_token == {}


class Clock:
    """A loop's timers, rung by hand."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Any]] = []

    def call_later(self, delay_s: float, call: Any) -> Any:
        self.due.append((delay_s, call))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def ring(self) -> None:
        [(delay_s, call)] = self.due
        assert delay_s == SLOW_READER_S
        self.due.clear()
        call()


def test_a_reader_that_takes_next_to_nothing_is_cut_off() -> None:
    clock, wire = Clock(), Wire()
    watch = ReaderWatch(clock, wire)  # type: ignore[arg-type]  # only its timers are used
    wire.waiting = 10 * SLOW_READER_BYTES
    watch.paused()
    wire.waiting -= SLOW_READER_BYTES
    clock.ring()
    assert not wire.aborted, "it reads, if slowly"
    wire.waiting -= SLOW_READER_BYTES - 1
    clock.ring()
    assert wire.aborted


def test_a_reader_that_has_caught_up_is_left_alone() -> None:
    clock, wire = Clock(), Wire()
    watch = ReaderWatch(clock, wire)  # type: ignore[arg-type]  # only its timers are used
    wire.waiting = 1
    watch.paused()
    watch.resumed()
    assert clock.due == []


class SmallHub:
    """A hub process that may open few files."""

    def __init__(self, home: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        command = f'ulimit -n {FILES}; exec "$0" -P -m dray.cli.main hub --home "$1" --port 0'
        self._process = subprocess.Popen(
            ["sh", "-c", command, sys.executable, str(home)], env=env, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while not (home / "hub.json").exists():
            assert time.monotonic() < deadline
            assert self._process.poll() is None
            time.sleep(0.01)
        self.url = url = json.loads((home / "hub.json").read_text())["url"]
        self.token = (home / "token").read_text().strip()
        self.address = ("127.0.0.1", int(url.rpartition(":")[2]))

    def ask(self, path: str, body: Any = None) -> Any:
        return json.loads(self.read(path, body))

    def read(self, path: str, body: Any = None) -> bytes:
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                connection.request("POST", path, json.dumps(body), headers)
            return connection.getresponse().read()

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture
def small_hub(tmp_path: Path) -> Iterator[SmallHub]:
    hub = SmallHub(tmp_path)
    yield hub
    hub.stop()


def crowd(hub: SmallHub, stack: contextlib.ExitStack) -> None:
    """Open many connections that say next to nothing, and hold them."""
    for _ in range(1100):
        with contextlib.suppress(OSError):
            stranger = stack.enter_context(socket.create_connection(hub.address, timeout=5))
            stranger.sendall(b"G")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_thousand_connections_of_one_byte_lock_nobody_out(small_hub: SmallHub) -> None:
    with contextlib.ExitStack() as stack:
        crowd(small_hub, stack)
        # The one behind all of them in the backlog is served; every other one was accepted by then.
        assert small_hub.ask("/api/v1/hub")["ready"] is True
        assert small_hub.files() < FILES - 64, "no room is left for output"


def test_output_arrives_while_strangers_hold_what_they_can(small_hub: SmallHub) -> None:
    """Each piece opens its file anew: without a reserve it is dropped the moment descriptors have run out."""
    pieces = [f"line {number}\n".encode() for number in range(100)]
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(MockWorker(small_hub.url, small_hub.token, "w1", msgpack=True))
        worker.register()
        job_id = small_hub.ask("/api/v1/jobs", {"command": ["true"]})["id"]
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        worker.started(task)
        said = 0
        for number, piece in enumerate(pieces):
            if number == len(pieces) // 4:
                crowd(small_hub, stack)
            log = {"task_id": task.task_id, "attempt": task.attempt, "stream": "stdout", "offset": said}
            worker.send("job_log", log | {"data": piece})
            said += len(piece)
        worker.result(task)
        while worker.recv("ack", 30).payload.get("re") != "job_result":
            pass
        assert small_hub.read(f"/api/v1/jobs/{job_id}/logs") == b"".join(pieces)
