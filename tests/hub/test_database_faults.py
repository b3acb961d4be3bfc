"""Whole hubs whose database is full, read-only, slow or out of reach; hubs that stop, sleep or err about the time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.proxy import Relay
from tests.hub.asking import ask, wait_until
from tests.hub.replicas import Pair
from tests.hub.several_hubs import Hubs, Standby, hubs
from tests.hub.small_disk import fill_up, mounted
from tests.postgres import NOBODY, Server

import dray
from dray.testing.hub_process import RunningHub

__all__ = ["hubs"]
DOZE = """CREATE OR REPLACE FUNCTION dray.doze() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN PERFORM pg_sleep({}); RETURN NULL; END $$"""
SLOW = """CREATE CONSTRAINT TRIGGER doze AFTER INSERT OR UPDATE ON dray.{} DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION dray.doze()"""
AN_HOUR_AHEAD = """import sys, time
wall_s, wall_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: wall_s() + 3600, lambda: wall_ns() + 3600 * 10**9
from dray.cli.main import main
sys.exit(main())"""
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dray:%'"


def stand_by(hubs: Hubs, **settings: Any) -> Standby:
    hub = hubs(Standby, **settings)
    assert isinstance(hub, Standby)
    return hub


def submit(hub: RunningHub, job_id: str) -> int:
    return ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"]})[0]


def role(hub: RunningHub) -> str:
    return str((ask(hub, "GET", "/hub/status")[1] or {}).get("role"))


def find_leader(*hubs: RunningHub) -> RunningHub:
    """Wait until one of them leads."""
    found: RunningHub = wait_until(
        lambda: next((hub for hub in hubs if hub.url and role(hub) == "leader"), None)
    )
    return found


def beats(server: Server) -> int:
    return int(server.run("SELECT beat FROM dray.leader"))


class Later(threading.Thread):
    """A submit that waits for its answer beside the test."""

    def __init__(self, hub: RunningHub, job_id: str) -> None:
        super().__init__()
        self._words, self.status = (hub, job_id), -1
        self.start()

    def run(self) -> None:
        self.status = submit(*self._words)


def test_a_hub_waits_for_a_database_that_is_full(
    hubs: Hubs, shared_postgres: Server, tmp_path: Path, short_tmp: Path
) -> None:
    with mounted(short_tmp / "small", "24m") as disk:
        place = disk / "space"
        place.mkdir(mode=0o700)
        short_tmp.chmod(0o755)
        if NOBODY:
            os.chown(place, NOBODY["user"], NOBODY["group"])
        shared_postgres.run(f"CREATE TABLESPACE small LOCATION '{place}'")
        shared_postgres.run("CREATE DATABASE narrow TABLESPACE small")
        try:
            hub = hubs(url=shared_postgres.url("narrow"))
            pid = hub.pid
            assert submit(hub, "before") == 201
            fill_up(disk / "filler")
            body = {"command": ["true"], "env": {"X": "x" * 60_000}}
            stuck = threading.Thread(target=lambda: [ask(hub, "POST", "/jobs", body) for _ in range(8)])
            stuck.start()
            wait_until(lambda: "is full: free space there" in (hub.home / "hub.err").read_text())
            assert stuck.is_alive(), "what is not committed is not answered"
            (disk / "filler").unlink()
            stuck.join(60)
            assert submit(hub, "after") == 201
            assert (hub.pid, len(ask(hub, "GET", "/jobs?limit=50")[1]["jobs"])) == (pid, 10)
            hub.stop()
        finally:
            shared_postgres.run("DROP DATABASE narrow WITH (FORCE)")
            shared_postgres.run("DROP TABLESPACE small")


def test_a_database_that_takes_no_writes_for_a_while_is_waited_for(
    hubs: Hubs, servers: Callable[..., Server]
) -> None:
    server = servers()
    first = hubs(url=server.url("postgres"))
    second = stand_by(hubs, url=server.url("postgres"))
    assert submit(first, "before") == 201
    server.run("ALTER SYSTEM SET default_transaction_read_only = on")
    server.run("SELECT pg_reload_conf()")
    server.run(END)
    late = Later(first, "late")
    wait_until(lambda: "read-only" in second.said)
    assert late.is_alive()
    server.run("ALTER SYSTEM RESET default_transaction_read_only")
    server.run("SELECT pg_reload_conf()")
    late.join(60)
    # Who is back first leads; the other one stands by.
    leader = find_leader(first, second)
    assert ask(leader, "GET", "/jobs/before")[0] == 200
    assert (ask(leader, "GET", "/jobs/late")[0] == 200) or late.status != 201
    assert all(psutil.pid_exists(hub.pid) for hub in (first, second))


def test_commits_that_take_long_leave_the_lead_where_it_is_and_too_long_ones_lose_nothing(
    hubs: Hubs, shared_postgres: Server
) -> None:
    first = hubs(store_lease_s=3)
    second = stand_by(hubs, store_lease_s=3)
    shared_postgres.run(DOZE.format(0.5))
    for table in ("log", "meta", "leader"):
        shared_postgres.run(SLOW.format(table))
    slow = [submit(first, f"slow{number}") for number in range(3)]
    assert (slow, shared_postgres.run("SELECT epoch FROM dray.leader")) == ([201] * 3, "1")
    # Longer than a lease allows: whoever leads, it gets nowhere, and nobody is told that it did.
    shared_postgres.run(DOZE.format(2.2))
    late = Later(first, "late")
    wait_until(lambda: "waits for it" in (first.home / "hub.err").read_text())
    shared_postgres.run(DOZE.format(0))
    late.join(60)
    leader = find_leader(first, second)
    if late.status == 201:
        assert ask(leader, "GET", "/jobs/late")[0] == 200
    assert [ask(leader, "GET", f"/jobs/slow{number}")[0] for number in range(3)] == [200] * 3
    assert submit(leader, "after") == 201


def test_a_leader_that_is_cut_off_answers_nobody_and_stands_by_when_it_is_back(
    hubs: Hubs, shared_postgres: Server, database: str
) -> None:
    relay = Relay(shared_postgres.port)
    first = hubs(url=database.replace(str(shared_postgres.port), str(relay.port)))
    second = stand_by(hubs)
    with first.worker("w1") as worker:
        worker.register()
        assert submit(first, "before") == 201
        for direction in ("up", "down"):
            relay.lose(direction, later_too=True)
        late = Later(first, "late")
        second.wait()
        worker.heartbeat()
        assert submit(second, "other1") == 201
        relay.heal()
        relay.cut()
        with pytest.raises(Exception):  # noqa: B017, PT011 - closed, however the socket says so
            worker.recv("ack", 60.0)
    late.join(60)
    assert late.status in (0, 503)
    wait_until(lambda: role(first) == "standby")
    assert [ask(second, "GET", f"/jobs/{job}")[0] for job in ("before", "other1", "late")] == [200, 200, 404]
    relay.close()


def test_a_leader_that_slept_acknowledges_no_heartbeat(hubs: Hubs) -> None:
    """The worker's fenced lease would go on by a word of one that leads no more."""
    first = hubs()
    second = stand_by(hubs)
    with first.worker("w1") as worker:
        worker.register()
        process = psutil.Process(first.pid)
        process.send_signal(signal.SIGSTOP)
        # It finds this when it wakes.
        worker.heartbeat()
        second.wait()
        process.send_signal(signal.SIGCONT)
        with pytest.raises(Exception):  # noqa: B017, PT011 - closed, however the socket says so
            worker.recv("ack", 60.0)
    wait_until(lambda: role(first) == "standby")


def test_one_that_stands_by_may_die_or_sleep_and_the_leader_goes_on(
    hubs: Hubs, shared_postgres: Server
) -> None:
    first = hubs()
    second, third = stand_by(hubs), stand_by(hubs)
    second.kill()
    process = psutil.Process(third.pid)
    assert submit(first, "a1") == 201
    # It sleeps for longer than a lease, by what the leader does meanwhile; then it looks for as long.
    for number in (signal.SIGSTOP, signal.SIGCONT):
        process.send_signal(number)
        before = beats(shared_postgres)
        wait_until(lambda: beats(shared_postgres) > before + 4)  # noqa: B023 - at once
    assert shared_postgres.run("SELECT epoch FROM dray.leader") == "1"
    assert (role(first), submit(first, "a2")) == ("leader", 201)
    first.kill()
    third.wait()
    assert [ask(third, "GET", f"/jobs/{job}")[0] for job in ("a1", "a2")] == [200, 200]


def test_a_client_that_knows_only_one_that_stands_by_goes_on_through_a_change(hubs: Hubs) -> None:
    first = hubs()
    second = stand_by(hubs)
    told: dict[int, list[str]] = {}
    over = threading.Event()

    def ask_all_the_time() -> None:
        number = 0
        while not over.is_set():
            number += 1
            told.setdefault(submit_at(second.address, first.token, f"raw{number}"), []).append(f"raw{number}")

    asking = threading.Thread(target=ask_all_the_time)
    asking.start()
    try:
        with dray.connect(second.address, first.token, second.home) as client:
            done = [client.submit(["true"]).id for _ in range(3)]
            wait_until(lambda: 201 in told)
            first.kill()
            done += [client.submit(["true"]).id for _ in range(3)]
            before = len(told[201])
            wait_until(lambda: len(told[201]) > before)
    finally:
        over.set()
        asking.join()
    second.wait()
    # Before its link stands it says who leads; then it passes things on, and at last it leads.
    assert set(told) <= {503, 201, 200}
    done += [*told[201], *told.get(200, ())]
    assert [job for job in done if ask(second, "GET", f"/jobs/{job}")[0] != 200] == []
    assert [job for job in told.get(503, ()) if ask(second, "GET", f"/jobs/{job}")[0] != 404] == []


def submit_at(url: str, token: str, job_id: str) -> int:
    hub = RunningHub(Path(), {})
    hub.url = url
    return ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"]}, token=token)[0]


def test_a_failover_that_lost_turns_is_told_and_what_runs_unknown_is_not_killed(
    hubs: Hubs, servers: Callable[..., Server]
) -> None:
    """A standby of the server is promoted that lacks the last turns; the hub that gave them out leads again."""
    pair = Pair(servers)
    relay = Relay(pair.primary.port)
    url = pair.primary.url("postgres").replace(str(pair.primary.port), str(relay.port))
    try:
        first = hubs(url=url)
        second = stand_by(hubs, url=url)
        with first.worker("w1") as worker:
            worker.register()
            assert submit(first, "kept") == 201
            worker.run_one()
            wait_until(lambda: ask(first, "GET", "/jobs/kept")[1]["state"] == "succeeded")
            reached = pair.primary.run("SELECT pg_current_wal_lsn()")
            wait_until(lambda: pair.standby.run(f"SELECT pg_last_wal_replay_lsn() >= '{reached}'") == "t")
            pair.part()
            assert submit(first, "gone") == 201
            worker.ready()
            task = worker.assigned()
            worker.accept(task)
            worker.started(task)
            wait_until(lambda: ask(first, "GET", "/jobs/gone")[1]["state"] == "running")
            pair.fail_over(relay)
        # The first commit finds it out.
        wait_until(lambda: submit(find_leader(first, second), "later") in (200, 201))
        leader = find_leader(first, second)
        assert [ask(leader, "GET", f"/jobs/{job}")[0] for job in ("kept", "gone")] == [200, 404]
        told = str(ask(leader, "GET", "/doctor")[1])
        assert "lost turns" in told
        with leader.worker("w1") as worker:
            worker.register(
                active_tasks=[{"task_id": task.task_id, "state": "running", "attempt": task.attempt}]
            )
            worker.heartbeat()
            worker.recv("ack", 60.0)
            assert "job_cancel" not in [message.type for message in worker.script.held]
        assert (leader, all(psutil.pid_exists(hub.pid) for hub in (first, second))) == (first, True)
    finally:
        relay.close()
        pair.close()


class HourAhead(subprocess.Popen[str]):
    """Starts what it is given with a wall clock that is wrong."""

    def __init__(self, command: list[str], **more: Any) -> None:
        assert command[1:3] == ["-m", "dray.cli.main"]
        super().__init__([command[0], "-c", AN_HOUR_AHEAD, *command[3:]], **more)


class Ahead(Standby):
    popen = HourAhead


def test_a_hub_whose_clock_is_an_hour_ahead_neither_hurries_nor_harms(hubs: Hubs) -> None:
    first = hubs()
    second = hubs(Ahead)
    assert isinstance(second, Ahead)
    with first.worker("w1") as worker:
        worker.register()
        assert submit(first, "a1") == 201
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        worker.started(task)
        # It stands by for as long as the leader beats, and dates nothing by its own clock that others go by.
        wait_until(lambda: [row["lag"] for row in ask(first, "GET", "/hubs")[1]["hubs"]] == [0, 0])
        assert max(row["seen_s"] for row in ask(first, "GET", "/hubs")[1]["hubs"]) < 3000
        assert role(first) == "leader"
        first.kill()
    second.wait()
    (check,) = [one for one in ask(second, "GET", "/doctor")[1]["checks"] if one["name"] == "clock"]
    assert (check["ok"], "-3600" in check["detail"]) == (False, True), check
    assert ask(second, "GET", "/jobs/a1")[1]["state"] == "running", (
        "nobody's patience has run out by the wall"
    )
    with second.worker("w1") as worker:
        worker.register(active_tasks=[{"task_id": task.task_id, "state": "running", "attempt": task.attempt}])
        worker.result(task)
        wait_until(lambda: ask(second, "GET", "/jobs/a1")[1]["state"] == "succeeded")
    second.stop()
    third = hubs()
    assert ask(third, "GET", "/jobs/a1")[1]["state"] == "succeeded"
    assert submit(third, "a2") == 201
