"""A database that a hub cannot use: one sentence that says what was asked, what is there and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres import PASSWORD, Server

from dray.errors import StoreError
from dray.hub.store.postgres import connection
from dray.hub.store.postgres.address import Address
from dray.hub.store.postgres.store import PgStore


def start(tmp_path: Path, url: str, *words: str, **env: str) -> str:
    """Start a hub that must not start; gives what it says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dray.cli.main",
            "hub",
            "--home",
            str(tmp_path / "home"),
            "--port",
            "0",
            *words,
        ],
        env={**kept, "DRAY_STORE": url, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stderr.strip()
    assert done.returncode != 0, said
    assert "Traceback" not in said
    assert PASSWORD not in said
    assert "other-word" not in said
    return said.splitlines()[-1]


def test_what_is_wrong_with_an_address_is_told(tmp_path: Path, shared_postgres: Server) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        said = start(tmp_path, f"postgres://dray:{PASSWORD}@127.0.0.1:{port}/postgres")
    assert said.startswith(f"dray hub: no PostgreSQL answers at postgres://dray@127.0.0.1:{port}/postgres (")
    said = start(tmp_path, shared_postgres.url("postgres", password="other-word"))
    assert "does not let this user in" in said
    assert "PGPASSFILE" in said
    said = start(tmp_path, shared_postgres.url("nowhere"))
    assert 'database "nowhere" does not exist' in said
    assert "createdb" in said
    said = start(tmp_path, f"mysql://dray:{PASSWORD}@h/d")
    assert "DRAY_STORE: the store is a database, postgres://" in said


def test_a_password_in_the_words_of_a_command_is_refused(tmp_path: Path, shared_postgres: Server) -> None:
    said = start(tmp_path, "", "--store", shared_postgres.url("postgres"))
    assert "seen by every user of the machine" in said


def test_a_database_that_takes_no_writes_is_told(tmp_path: Path, shared_postgres: Server) -> None:
    name = shared_postgres.make_database()
    shared_postgres.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert "takes no writes" in start(tmp_path, shared_postgres.url(name))


def test_a_user_without_rights_is_told(tmp_path: Path, shared_postgres: Server) -> None:
    name = shared_postgres.make_database()
    shared_postgres.run(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
    said = start(tmp_path, shared_postgres.url(name, user="guest"))
    assert "permission denied" in said
    assert "own the schema dray" in said
    shared_postgres.run("CREATE SCHEMA dray AUTHORIZATION guest", name)
    store = PgStore.open(Address(shared_postgres.url(name, user="guest")), tmp_path)
    store.begin_epoch()
    store.close(clean=True)


def test_an_old_server_is_told(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OLDEST", 99)
    with pytest.raises(StoreError, match="upgrade the server"):
        PgStore.open(Address(database), tmp_path)


@pytest.fixture
def pooler(shared_postgres: Server) -> Iterator[int]:
    """Passes everything on but the number of the server's process, as poolers do: they have numbers of their own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pass_on(source: socket.socket, target: socket.socket, change: bool) -> None:
        try:
            while data := source.recv(65536):
                at = data.find(b"K\x00\x00\x00\x0c") if change else -1
                if at >= 0:
                    data = data[: at + 5] + b"\x00\x01" + data[at + 7 :]
                target.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, target):
                with_shutdown(one)

    def with_shutdown(one: socket.socket) -> None:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            one.close()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", shared_postgres.port))
            for words in ((client, server, False), (server, client, True)):
                threading.Thread(target=pass_on, args=words, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def test_a_pooler_is_told(tmp_path: Path, pooler: int) -> None:
    said = start(tmp_path, f"postgres://dray:{PASSWORD}@127.0.0.1:{pooler}/postgres")
    assert "a connection pooler stands between" in said


def test_a_password_file_will_do(
    tmp_path: Path, shared_postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pass"
    file.write_text(f"127.0.0.1:{shared_postgres.port}:*:dray:{PASSWORD}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    address = Address(f"postgresql://dray@127.0.0.1:{shared_postgres.port}/{shared_postgres.make_database()}")
    PgStore.open(address, tmp_path).close(clean=True)
    assert (address.has_password, str(address)) == (False, address.shown)


@pytest.mark.parametrize(
    ("text", "shown", "secret"),
    [
        ("postgres://u:p@h/d", "postgres://u@h/d", True),
        ("postgresql://u@h:5433/d?sslmode=require", "postgres://u@h:5433/d?sslmode=require", False),
        ("postgres://h/d?password=p&user=u", "postgres://h/d?user=u", True),
        ("postgres:///d?host=/run/postgresql", "postgres:///d?host=/run/postgresql", False),
        ("postgres://u:p@[::1]:5432/d", "postgres://u@[::1]:5432/d", True),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, shown: str, secret: bool) -> None:
    address = Address(text)
    assert (str(address), address.has_password, address.url) == (shown, secret, text)
    assert repr(address) == f"Address({shown!r})"
