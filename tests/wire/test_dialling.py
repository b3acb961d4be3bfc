"""Who listens: the account behind a port and behind a socket, seen by the system and never by what a peer says."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 - looked up by a child that may no longer read where Python is
import os
import pwd
import signal
import socket
import ssl
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from tests.conftest import LIMIT_S
from tests.e2e.stranger import NAME, Listener

from dray.errors import InvalidConfig
from dray.wire.reach.dialling import Opening, Stranger, Way, _check_listener, open_line
from dray.wire.reach.listeners import (
    ESTABLISHED,
    LISTEN,
    Place,
    _place,
    _Row,
    ask_kernel,
    find_owners,
    read_tables,
)


def no_trust() -> None:
    raise AssertionError("TLS is for connections that leave this machine")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
@pytest.mark.parametrize("wide", [False, True])
def test_a_listener_of_ones_own(family: socket.AddressFamily, host: str, wide: bool) -> None:
    with socket.socket(family) as listener:
        listener.bind(("" if wide else host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        for name in (host, *(["127.0.0.1"] if wide else [])):
            shown = f"[{name}]" if ":" in name else name
            line = open_line(Way(f"http://{shown}:{port}"), 5, no_trust)
            assert (line.local, line.uid) == (False, os.geteuid())
            line.sock.close()


def test_both_of_the_kernels_answers_agree(wait_until: Callable[..., object]) -> None:
    with socket.socket(socket.AF_INET6) as wide, socket.socket() as narrow:
        for listener, host in ((wide, "::"), (narrow, "127.0.0.1")):
            listener.bind((host, 0))
            listener.listen()
            with socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as sock:
                theirs, ours = _place(sock.getpeername()), _place(sock.getsockname())

                def agreed(theirs: Place = theirs, ours: Place = ours) -> list[_Row]:
                    """Asked one after the other, while the far end of the connection may still come into being."""
                    asked, read = ask_kernel(theirs, ours), read_tables(theirs[1])
                    assert asked is not None
                    assert read is not None
                    both = sorted(asked) == sorted(read)
                    return asked if both and ESTABLISHED in (row.state for row in asked) else []

                rows = cast("list[_Row]", wait_until(agreed, what="one answer of the kernel's both ways"))
                assert sorted(row.state for row in rows) == [ESTABLISHED, LISTEN]
                assert find_owners(sock) == ([os.geteuid()], [0])


@needs_root
def test_a_listener_of_another_account_only_where_it_is_named() -> None:
    uid = pwd.getpwnam(NAME).pw_uid
    with Listener() as stranger:
        url = f"http://127.0.0.1:{stranger.port}"
        with pytest.raises(Stranger, match="is held by nobody"):
            open_line(Way(url), 5, no_trust)
        for named in (NAME, str(uid)):
            line = open_line(Way(url, hub_user=named), 5, no_trust)
            assert line.uid == uid
            line.sock.close()
    with pytest.raises(InvalidConfig, match="no account"):
        open_line(Way(url, hub_user="no-such-account"), 5, no_trust)


@needs_root
def test_a_task_of_another_account_reaches_a_hub_that_is_neither_its_own_nor_roots(short_tmp: Path) -> None:
    """It may not open the socket of the home, and is told by its agent whose the hub is."""
    short_tmp.chmod(0o700)
    hub, task = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam(NAME).pw_uid
    with Listener(account="daemon") as listener:
        way = Way(f"http://127.0.0.1:{listener.port}", str(short_tmp / "hub.sock"))
        child = os.fork()
        if child == 0:
            os.setuid(task)
            code = 1
            try:
                open_line(way, 5, no_trust)
            except Stranger:
                code = 0 if open_line(way._replace(hub_user=str(hub)), 5, no_trust).uid == hub else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_root
def test_a_connection_that_another_account_took_is_seen_though_a_friend_listens() -> None:
    """The friend hands its listener on, as a service manager does; what counts is who holds this very connection."""
    nobody = pwd.getpwnam(NAME)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(nobody.pw_uid)
            peer, _ = listener.accept()
            os.write(told, b"x")
            peer.recv(1)
            os._exit(0)
        try:
            with socket.create_connection(listener.getsockname()) as sock:
                os.read(taken, 1)
                with pytest.raises(Stranger, match="is held by nobody"):
                    _check_listener(sock, "http://it", frozenset({0}))
        finally:
            os.waitpid(child, 0)


@needs_root
def test_a_listener_of_another_account_that_has_not_taken_the_connection_yet() -> None:
    """Its end of the connection is nobody's so far, and shown as root's."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(pwd.getpwnam(NAME).pw_uid)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            os.write(told, str(listener.getsockname()[1]).encode())
            signal.pause()
    try:
        with pytest.raises(Stranger, match="is held by nobody"):
            open_line(Way(f"http://127.0.0.1:{int(os.read(ready, 16))}"), 5, no_trust)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)


@needs_root
def test_a_socket_in_a_folder_of_another_account_who_could_put_any_in_its_place(short_tmp: Path) -> None:
    path = short_tmp / "hub.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        open_line(Way("http://127.0.0.1:1", str(path)), 5, no_trust).sock.close()
        os.chown(short_tmp, pwd.getpwnam(NAME).pw_uid, -1)
        with pytest.raises(Stranger, match=f"{short_tmp} belongs to nobody"):
            open_line(Way("http://127.0.0.1:1", str(path)), 5, no_trust)


def test_a_socket_whose_path_is_too_long_for_the_system(tmp_path: Path) -> None:
    from dray.hub.http.server import bind_local

    home = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6)
    home.mkdir(parents=True)
    listener = bind_local(home)
    assert listener is not None
    with listener:
        line = open_line(Way("http://127.0.0.1:1", str(home / "hub.sock")), 5, no_trust)
        assert (line.local, line.uid) == (True, os.geteuid())
        line.sock.close()


def test_a_file_that_is_no_socket_is_told_and_one_that_is_gone_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / "hub.sock").write_text("")
    with pytest.raises(Stranger, match="is no socket"):
        open_line(Way("http://127.0.0.1:1", str(tmp_path / "hub.sock")), 5, no_trust)
    with pytest.raises(ConnectionRefusedError):
        open_line(Way("http://127.0.0.1:1", str(tmp_path / "gone")), 5, no_trust)


async def test_a_line_that_nobody_waits_for_any_longer_is_closed() -> None:
    """The thread that opens it goes on, and gives it to nobody."""
    go_on, asked = threading.Event(), threading.Event()

    def take_long() -> ssl.SSLContext:
        asked.set()
        go_on.wait(LIMIT_S)
        return ssl.create_default_context()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        way = Way(f"https://127.0.0.1:{listener.getsockname()[1]}")
        waiting = asyncio.ensure_future(Opening(way, LIMIT_S, take_long).wait(asyncio.to_thread))
        await asyncio.to_thread(asked.wait, LIMIT_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            go_on.set()
            listener.settimeout(LIMIT_S)
            peer, _ = await asyncio.to_thread(listener.accept)
            with peer:
                peer.settimeout(LIMIT_S)
                assert await asyncio.to_thread(peer.recv, 1) == b"", "it is closed"
        assert not [one for one in told if "unclosed" in str(one.message)], (
            "and not only since nobody holds it"
        )
