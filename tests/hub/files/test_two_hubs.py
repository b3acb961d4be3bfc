"""Two hubs with one place: what the old one still does counts for nothing, and no byte is there twice, torn or lost."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hub.files.test_contract import ERR, OUT, Hub
from tests.postgres import Server

from dray.errors import EpochLost, NoSpace, StoreError
from dray.hub.files.base import Files
from dray.hub.files.postgres import PgFiles
from dray.hub.files.shared import SharedFiles
from dray.hub.files.side import Side
from dray.hub.store.postgres.store import PgStore

Open = Callable[[], Files]
BOTH = pytest.mark.parametrize("kind", ["shared", "postgres"])
Pieces = tuple[tuple[int, int, bytes], ...]


@pytest.fixture
def opener(kind: str, request: pytest.FixtureRequest) -> Open:
    found: Open = request.getfixturevalue(f"open_{kind}")
    return found


def say_late(hub: Hub, *pieces: tuple[int, int, bytes]) -> None:
    """What a hub that was taken over does: a database refuses it, a folder takes it where nobody looks."""
    try:
        hub.say(*pieces)
    except EpochLost:
        assert isinstance(hub.files, PgFiles)


@BOTH
def test_what_an_old_leader_writes_late_is_nowhere(opener: Open) -> None:
    old = Hub(opener())
    old.say((OUT, 0, b"aaa"))
    old.say((ERR, 0, b"e"))
    new = Hub(opener())
    assert new.recording().ends == (3, 1)
    say_late(old, (OUT, 3, b"LATE"))
    assert new.say((OUT, 3, b"bbb")) == (6, 1)
    say_late(old, (OUT, 7, b"LATER"))
    third = Hub(opener())
    assert third.say((OUT, 0, b"aaabbbccc")) == (9, 1)
    say_late(new, (OUT, 6, b"LATE"))
    say_late(old, (OUT, 12, b"LATE"))
    for one in (third, Hub(opener())):
        assert one.text() == b"aaabbbccc"
        assert one.text(ERR) == b"e"
        assert [frame.gap for frame in one.frames()] == [0] * 4


@BOTH
def test_hubs_that_take_turns_leave_every_byte_once(opener: Open) -> None:
    """A worker sends from where it was told last; old hubs go on with what they had."""
    text, told = b"".join(b"line %d\n" % number for number in range(100)), 0
    hubs: list[Hub] = []
    while told < len(text):
        hubs.append(Hub(opener()))
        assert hubs[-1].recording().ends[OUT] == told
        for size in (17, 130, 3):
            for old in hubs[-3:-1]:
                say_late(old, (OUT, told, b"?" * 50))
            told = hubs[-1].say((OUT, max(0, told - 40), text[max(0, told - 40) : told + size]))[0]
    assert Hub(opener()).text() == text


@BOTH
def test_a_new_hub_that_only_read_leaves_the_tape_to_the_next(opener: Open) -> None:
    Hub(opener()).say((OUT, 0, b"one"))
    assert Hub(opener()).text() == b"one"
    assert Hub(opener()).say((OUT, 3, b"two")) == (6, 0)
    assert Hub(opener()).text() == b"onetwo"


@BOTH
def test_what_an_old_leader_removes_late_stays(opener: Open) -> None:
    old = Hub(opener())
    digest = old.put(b"value")
    new = Hub(opener())
    assert new.files.blobs.renew(digest) == 5
    new.say((OUT, 0, b"of the new"), job="j1")
    for remove in (
        lambda: old.files.blobs.remove(digest, time.time() + 60),
        lambda: old.files.tapes.drop(["j1"]),
        lambda: old.files.tapes.trim(0, frozenset()),
    ):
        try:
            remove()
        except EpochLost:
            assert isinstance(old.files, PgFiles)
    assert new.get(digest) == b"value"
    assert Hub(opener()).text(job="j1") == b"of the new"


def test_a_torn_end_and_a_torn_head_are_cut_off(open_shared: Open, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "output" / "j1"
    hub = Hub(open_shared())
    hub.say((OUT, 0, b"whole"))
    with (folder / "1" / "0.1.1-1").open("ab") as file:
        file.write(b"\0\x05\0\0\0")
    (folder / "2").mkdir()
    (folder / "2" / "0.1.1-1").write_bytes(b"dray")
    second = Hub(open_shared())
    assert second.say((OUT, 5, b" and more")) == (14, 0)
    assert second.text() == b"whole and more"
    with (folder / "2" / "0.1.1-1").open("ab") as file:
        file.write(b"\0\x0e\0\0\0")
    # The same hub, after it forgot where it was.
    again = Hub(second.files)
    assert again.say((OUT, 14, b"!")) == (15, 0)
    assert Hub(open_shared()).text() == b"whole and more!"


def test_the_shared_folder_is_for_its_user_and_group_and_one_store(open_shared: Open, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        hub = Hub(open_shared())
        hub.say((OUT, 0, b"x"))
        hub.put(b"value")
        hub.files.keep_secret("task_secret", b"s" * 32)
    finally:
        os.umask(before)
    modes = {
        stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "shared").rglob("*")
        if "secrets" not in path.parts and path.name != "site"
    }
    assert modes == {0o750, 0o640}
    assert stat.S_IMODE((tmp_path / "shared" / "secrets" / "task_secret").stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="holds files of another store"):
        SharedFiles(tmp_path / "shared", "another", lambda: 9)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        SharedFiles(tmp_path / "file" / "below", "site", lambda: 9)


def test_a_link_in_the_place_of_a_file_is_not_followed(open_shared: Open, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    hub = Hub(open_shared())
    folder = tmp_path / "shared" / "output" / "j1" / "1"
    folder.mkdir(parents=True)
    (folder / "0.1.1-1").symlink_to(victim)
    hub.say((OUT, 0, b"overwritten"))
    assert victim.read_bytes() == b"precious"


def test_a_folder_that_is_full_costs_the_piece_and_is_told(open_shared: Open, monkeypatch: Any) -> None:
    hub = Hub(open_shared())
    hub.say((OUT, 0, b"first"))
    write = os.pwrite

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert hub.say((OUT, 5, b"lost")) == (9, 0)
    ok, words = hub.files.describe()
    assert (ok, "No space left" in words) == (False, True)
    monkeypatch.setattr(os, "pwrite", write)
    assert hub.say((OUT, 9, b"last")) == (13, 0)
    assert hub.files.describe()[0]
    again = Hub(open_shared())
    assert [(frame.data, frame.gap) for frame in again.frames()] == [(b"first", 0), (b"", 4), (b"last", 0)]


def test_a_statement_that_is_sent_again_changes_nothing(lead: Callable[[], PgStore]) -> None:
    store = lead()
    hub = Hub(PgFiles(store.attach(Side)))
    made = hub.recording().lay([(OUT, 0, b"text")])  # type: ignore[list-item]  # a piece is a tuple
    assert made is not None
    for _ in range(3):
        assert hub.files.tapes.write([made[0]]) == [True]
    assert hub.files.tapes.find([hub.recording().tape])[0].ends == (4, 0)
    assert hub.text() == b""
    assert Hub(hub.files).text() == b"text"


def test_output_outlives_a_server_that_is_killed_and_waits_for_it(
    servers: Callable[..., Server], lead: Callable[..., PgStore]
) -> None:
    """What was told to be filed is, and what was not is sent again by whoever has it: here the very same call."""
    server = servers()
    store = lead(server.url("postgres"))
    hub, told, over = Hub(PgFiles(store.attach(Side))), [0], threading.Event()
    text = b"".join(b"line %d\n" % number for number in range(20_000))

    def print_on() -> None:
        while told[0] < len(text) and not over.is_set():
            told[0] = hub.say((OUT, told[0], text[told[0] : told[0] + 300]))[0]

    printing = threading.Thread(target=print_on)
    printing.start()
    try:
        for _ in range(3):
            had, until = told[0], time.monotonic() + 60
            while told[0] < had + 3000 and printing.is_alive():
                assert time.monotonic() < until
                time.sleep(0.01)
            server.kill()
            server.start()
        printing.join(100)
    finally:
        over.set()
        printing.join(30)
    assert told[0] == len(text)
    assert Hub(PgFiles(lead(server.url("postgres")).attach(Side))).text() == text


def test_a_database_that_takes_no_writes_is_waited_for_and_told(
    servers: Callable[..., Server], lead: Callable[..., PgStore], caplog: pytest.LogCaptureFixture
) -> None:
    server = servers()
    store = lead(server.url("postgres"))
    hub = Hub(PgFiles(store.attach(Side)))
    hub.say((OUT, 0, b"before"))
    read_only = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dray:%'"
    server.run("ALTER SYSTEM SET default_transaction_read_only = on")
    server.run("SELECT pg_reload_conf()")
    server.run(read_only)
    waiting = threading.Thread(target=lambda: hub.say((OUT, 6, b" and after")))
    waiting.start()
    until = time.monotonic() + 60
    while "read-only" not in hub.files.describe()[1]:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not hub.files.describe()[0]
    assert waiting.is_alive()
    server.run("ALTER SYSTEM RESET default_transaction_read_only")
    server.run("SELECT pg_reload_conf()")
    waiting.join(60)
    assert hub.text() == b"before and after"
    assert hub.files.describe()[0]
    assert "output and values wait for it" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_a_database_that_is_full_is_waited_for_unless_the_hub_ends(
    lead: Callable[[], PgStore], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    side = lead().attach(Side)
    hub, ask, full = Hub(PgFiles(side)), side._writes.ask, threading.Event()
    full.set()

    async def refuse(asked: str, *values: Any, **more: Any) -> list[Any]:
        if full.is_set():
            raise NoSpace(f"cannot {asked}: the disk of the database is full: free space there")
        return await ask(asked, *values, **more)

    monkeypatch.setattr(side._writes, "ask", refuse)
    waiting = threading.Thread(target=lambda: hub.say((OUT, 0, b"kept")))
    waiting.start()
    until = time.monotonic() + 60
    while "is full" not in hub.files.describe()[1]:
        assert time.monotonic() < until
        time.sleep(0.01)
    full.clear()
    waiting.join(60)
    assert hub.text() == b"kept"
    assert "free space there; output and values wait for it" in caplog.text
    full.set()
    hub.files.tapes.stop_waiting()
    with pytest.raises(NoSpace):
        hub.say((OUT, 4, b"more"))


def test_a_renewal_finds_its_moment_while_output_flows(lead: Callable[[], PgStore]) -> None:
    """Each write holds a share of the leader's row, which a renewal needs for itself."""
    store = lead()
    hub, over = Hub(PgFiles(store.attach(Side)), cap=1 << 30), threading.Event()

    def flood() -> None:
        at = 0
        while not over.is_set():
            at = hub.say((OUT, at, b"x" * 100_000))[0]

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        took = []
        for _ in range(20):
            began = time.monotonic()
            store._loop.call(store._candidate.renew())
            took.append(time.monotonic() - began)
    finally:
        over.set()
        flooding.join()
    assert max(took) < 30
