"""The agent's socket for its tasks: who is let in, what is bounded, and that nobody can hold the agent up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dray.agent.tasks.accounts import OWN, Accounts, find_account
from dray.agent.tasks.session_home import SessionHome
from dray.agent.tasks.sessions import BAD_LINES, BUFFER_BYTES, LINES, PER_ATTEMPT, TaskSessions
from dray.client.futures.task_session import Session


class Ear:
    """Hears what tasks say."""

    def __init__(self) -> None:
        self.words: list[tuple[str, dict[str, Any]]] = []
        self.stop: dict[str, Any] | None = None

    def task_greeted(self, uid: str) -> dict[str, Any]:
        return {"task_id": f"job-{uid}"} | ({"stop": self.stop} if self.stop else {})

    def task_said(self, uid: str, words: dict[str, Any]) -> None:
        self.words.append((uid, words))


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
async def sessions(short_tmp: Path, ear: Ear) -> AsyncIterator[TaskSessions]:
    made = TaskSessions(SessionHome(short_tmp, Accounts({})), ear)
    await made.start()
    yield made
    made.close()
    await asyncio.sleep(0)


def dial(sessions: TaskSessions) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(sessions.home.path(OWN))
    line.setblocking(False)
    return line


async def greet(sessions: TaskSessions, uid: str = "1-1") -> socket.socket:
    line = dial(sessions)
    say(line, {"hello": {"attempt": uid, "key": sessions.home.key(uid)}})
    assert await hear(line) == {"hello": {"task_id": f"job-{uid}"}}
    return line


def say(line: socket.socket, message: Any) -> None:
    line.send(json.dumps(message).encode() + b"\n")


async def hear(line: socket.socket) -> Any:
    """The next line, or None at the end."""
    data = b""
    async with asyncio.timeout(60):
        while not data.endswith(b"\n"):
            try:
                piece = await asyncio.get_running_loop().sock_recv(line, 1)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return None
            data += piece
    return json.loads(data)


def inside(sessions: TaskSessions, uid: str = "1-1", **more: str) -> Session:
    """A task's own session, as it would find it in its environment."""
    return Session(
        {"DRAY_ATTEMPT_UID": uid, **sessions.variables(uid, sessions.home.accounts.all[0]), **more}
    )


async def test_the_socket_and_the_secret_are_nobody_elses(sessions, short_tmp):
    modes = {
        name: stat.S_IMODE(os.stat(short_tmp / name).st_mode) for name in ("session.sock", "session.key")
    }
    assert modes == {"session.sock": 0o600, "session.key": 0o600}
    assert len((short_tmp / "session.key").read_bytes()) == 32


async def test_keys_differ_and_outlive_the_agent(sessions, short_tmp):
    again = SessionHome(short_tmp, Accounts({}))
    assert sessions.home.key("1-1") == again.key("1-1") != again.key("1-2")
    assert again.path(OWN) == sessions.home.path(OWN)


async def test_a_long_home_gets_a_short_socket_that_stays(short_tmp):
    home = short_tmp / ("x" * 100)
    home.mkdir()
    first, second = SessionHome(home, Accounts({})), SessionHome(home, Accounts({}))
    assert first.path(OWN) == second.path(OWN)
    assert len(first.path(OWN)) < 100
    folder = Path(first.path(OWN)).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.rmdir()
    third = SessionHome(home, Accounts({}))
    assert third.path(OWN) != first.path(OWN), "what a reboot swept away is made anew"
    Path(third.path(OWN)).parent.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run tasks as somebody else")
async def test_another_user_reaches_the_socket_and_nothing_else(short_tmp, ear, wait_until_async):
    made = TaskSessions(SessionHome(short_tmp, Accounts({"*": "nobody"})), ear)
    await made.start()
    user, path = pwd.getpwnam("nobody").pw_uid, made.home.path(find_account("nobody"))
    try:
        found = os.stat(path)
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, user)
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o711
        child = os.fork()  # an interpreter of its own may be out of that user's reach
        if child == 0:
            os.setuid(user)
            mine = inside(made)
            mine.saved(3)
            os._exit(not mine.close(5))
        ended = await wait_until_async(lambda: os.waitpid(child, os.WNOHANG)[0] == child or None)
        assert ended
        assert ear.words == [("1-1", {"saved": {"step": 3}})]
    finally:
        made.close()
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


@pytest.mark.parametrize(
    "first",
    [
        {"hello": {"attempt": "1-1", "key": "0" * 64}},
        {"hello": {"attempt": "1-1", "key": "é" * 64}},
        {"hello": {"attempt": "1-1"}},
        {"hello": "let me in"},
        {"saved": {"step": 1}},
    ],
)
async def test_who_has_no_key_is_sent_away(sessions, ear, first):
    line = dial(sessions)
    say(line, first)
    assert "error" in await hear(line)
    assert await hear(line) is None
    assert ear.words == []
    line.close()


async def test_one_attempts_key_is_not_anothers(sessions):
    line = dial(sessions)
    say(line, {"hello": {"attempt": "1-2", "key": sessions.home.key("1-1")}})
    assert "not that attempt's" in (await hear(line))["error"]
    line.close()


async def test_words_arrive_and_bad_ones_are_named(sessions, ear):
    line = await greet(sessions)
    say(line, {"progress": {"step": 1}})
    say(line, {"progress": {"step": "x"}})
    assert "progress.step" in (await hear(line))["error"]
    say(line, {"saved": {"step": 2}})
    say(line, "not an object")
    assert "JSON object" in (await hear(line))["error"]
    assert ear.words == [("1-1", {"progress": {"step": 1}}), ("1-1", {"saved": {"step": 2}})]
    line.close()


async def test_many_bad_lines_end_it(sessions):
    line = await greet(sessions)
    line.send(b"x\n" * BAD_LINES)
    for _ in range(BAD_LINES):
        assert "error" in await hear(line)
    assert await hear(line) is None
    line.close()


async def test_an_endless_line_ends_it(sessions):
    line = await greet(sessions)
    line.send(b"x" * BUFFER_BYTES)
    assert "longer" in (await hear(line))["error"]
    assert await hear(line) is None
    line.close()


async def test_a_stop_reaches_every_connection_of_its_attempt_and_no_other(sessions):
    mine = [await greet(sessions), await greet(sessions)]
    other = await greet(sessions, "1-2")
    sessions.warn("1-1", {"reason": "user", "grace_s": 3})
    for line in mine:
        assert await hear(line) == {"stop": {"reason": "user", "grace_s": 3}}
    with pytest.raises(BlockingIOError):
        other.recv(1)
    for line in [*mine, other]:
        line.close()


async def test_connections_are_counted(sessions, wait_until_async):
    lines = [await greet(sessions) for _ in range(PER_ATTEMPT)]
    extra = dial(sessions)
    say(extra, {"hello": {"attempt": "1-1", "key": sessions.home.key("1-1")}})
    assert str(PER_ATTEMPT) in (await hear(extra))["error"]
    for line in [*lines, extra]:
        line.close()
    await wait_until_async(lambda: not sessions.open, what="all are gone")


async def test_a_flood_is_read_slowly_and_others_are_heard_meanwhile(sessions, ear, wait_until_async):
    loud, quiet = await greet(sessions), await greet(sessions, "1-2")
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:  # until the socket takes no more: the agent has stopped reading
            sent += loud.send(b'{"progress":{"step":1}}\n' * 100)
    say(quiet, {"saved": {"step": 7}})
    await wait_until_async(
        lambda: ("1-2", {"saved": {"step": 7}}) in ear.words, what="the quiet one is heard"
    )
    heard = sum(1 for uid, _ in ear.words if uid == "1-1")
    assert heard < sent // 24 // 2
    assert heard <= 20 * LINES
    loud.close()
    quiet.close()


async def test_who_does_not_read_is_dropped(sessions, wait_until_async):
    line = await greet(sessions)
    stop = {"reason": "user", "grace_s": 3, "why": "x" * 4000}
    for _ in range(200):
        sessions.warn("1-1", stop)
        await asyncio.sleep(0)
    await wait_until_async(lambda: "1-1" not in sessions.open, what="it was let go")
    line.close()


# --- the task's own side ----------------------------------------------------------------------------------------------


async def test_a_session_says_and_hears(sessions, ear, wait_until_async: Callable[..., Any]):
    mine = inside(
        sessions, DRAY_TASK_ID="job/3", DRAY_ATTEMPT="2", DRAY_DEVICES="0,3", RANK="1", WORLD_SIZE="4"
    )
    assert (mine.task_id, mine.attempt, mine.devices) == ("job/3", 2, (0, 3))
    assert (mine.rank, mine.world_size) == (1, 4)
    mine.progress(step=1, fraction=0.5, note="epoch 1")
    assert mine.should_stop() is False
    assert (mine.stop_reason, mine.grace_left_s) == ("", float("inf"))
    mine.saved(1)
    mine.finished()
    await wait_until_async(lambda: len(ear.words) == 4, what="all was heard")
    assert ear.words == [
        ("1-1", {"progress": {"step": 1, "fraction": 0.5, "note": "epoch 1"}}),
        ("1-1", {"watch": {}}),
        ("1-1", {"saved": {"step": 1}}),
        ("1-1", {"finished": {}}),
    ]
    sessions.warn("1-1", {"reason": "preempted", "grace_s": 30})
    await wait_until_async(mine.should_stop, what="the stop is seen")
    assert mine.stop_reason == "preempted"
    assert 20 < mine.grace_left_s <= 30
    await asyncio.to_thread(mine.close)
    assert mine.should_stop(), "a stop stands"


async def test_a_stop_from_before_the_session_is_told_at_once(sessions, ear):
    ear.stop = {"reason": "user", "grace_s": 5}
    mine = inside(sessions)
    assert await asyncio.to_thread(mine.wait_stop, 10)
    assert mine.stop_reason == "user"
    await asyncio.to_thread(mine.close)


async def test_a_session_finds_the_next_agent_and_repeats_its_last_words(
    sessions, ear, short_tmp, wait_until_async
):
    mine = inside(sessions)
    mine.progress(step=1)
    mine.saved(1)
    await wait_until_async(lambda: len(ear.words) == 2, what="the first agent heard it")
    sessions.close()
    for step in range(2, 30):
        mine.progress(step=step)
        mine.saved(step)
        assert mine.should_stop() is False
    later = Ear()
    second = TaskSessions(SessionHome(short_tmp, Accounts({})), later)
    await second.start()
    await wait_until_async(
        lambda: not mine.should_stop() and len(later.words) >= 3, what="the next one hears it"
    )
    assert ("1-1", {"progress": {"step": 29}}) in later.words
    assert ("1-1", {"saved": {"step": 29}}) in later.words
    assert ("1-1", {"watch": {}}) in later.words
    await asyncio.to_thread(mine.close)
    second.close()


async def test_a_loop_that_tells_too_much_sends_the_latest(sessions, ear, wait_until_async):
    mine = inside(sessions)
    for step in range(20_000):
        mine.progress(step=step)
        mine.should_stop()
    await wait_until_async(
        lambda: not mine.should_stop() and ("1-1", {"progress": {"step": 19_999}}) in ear.words,
        what="the last word arrives",
    )
    assert len(ear.words) < 2000
    await asyncio.to_thread(mine.close)


async def test_a_wrong_key_does_no_harm_to_the_task(sessions, ear):
    mine = Session(
        {"DRAY_ATTEMPT_UID": "1-1", "DRAY_SESSION": sessions.home.path(OWN), "DRAY_SESSION_KEY": "no"}
    )
    for step in range(50):
        mine.progress(step=step)
        assert mine.should_stop() is False
        await asyncio.sleep(0)
    assert ear.words == []
    mine.close(0.1)
