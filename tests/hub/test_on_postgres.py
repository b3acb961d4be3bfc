"""Whole hubs on a PostgreSQL server that is killed, stopped and taken over under them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
from tests.hub.asking import ask, look, wait_until
from tests.hub.several_hubs import Hubs, Standby, hubs
from tests.postgres import PASSWORD, Server

from dray.hub.examination import examine_home
from dray.testing.hub_process import RunningHub

__all__ = ["hubs"]


def stand_by(hubs: Hubs) -> Standby:
    hub = hubs(Standby)
    assert isinstance(hub, Standby)
    return hub


def submit(hub: RunningHub, job_id: str) -> int:
    return ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"]})[0]


def known(hub: RunningHub, job_id: str) -> bool:
    return ask(hub, "GET", f"/jobs/{job_id}")[0] == 200


def test_jobs_outlive_the_hub_and_its_home(hubs: Hubs, tmp_path: Path) -> None:
    hub = hubs()
    with hub.worker("w1") as worker:
        worker.register()
        assert submit(hub, "a1") == 201
        worker.run_one()
        wait_until(lambda: ask(hub, "GET", "/jobs/a1")[1]["state"] == "succeeded")
    assert submit(hub, "a2") == 201
    hub.kill()
    hub.start()
    assert [ask(hub, "GET", f"/jobs/{job}")[1]["state"] for job in ("a1", "a2")] == ["succeeded", "pending"]
    hub.stop()
    assert not list(hub.home.glob("hub.sqlite*"))
    other = hubs()
    assert [ask(other, "GET", f"/jobs/{job}")[1]["state"] for job in ("a1", "a2")] == ["succeeded", "pending"]


def test_no_acknowledged_job_is_lost_when_the_server_is_killed(
    hubs: Hubs, servers: Callable[..., Server]
) -> None:
    server = servers()
    hub = hubs(url=server.url("postgres"))
    pid, over = hub.pid, threading.Event()
    answered: list[list[str]] = [[], [], []]

    def keep_on(mine: list[str], name: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            if submit(hub, f"{name}{number}") == 201:
                mine.append(f"{name}{number}")

    def more_than(count: int) -> Callable[[], bool]:
        before = [len(mine) for mine in answered]
        return lambda: all(len(mine) > had + count for mine, had in zip(answered, before, strict=True))

    people = [threading.Thread(target=keep_on, args=(mine, f"p{n}-")) for n, mine in enumerate(answered)]
    for person in people:
        person.start()
    try:
        for _ in range(3):
            wait_until(more_than(5))
            server.kill()
            server.start()
        wait_until(more_than(0))
    finally:
        over.set()
        for person in people:
            person.join()
    assert hub.pid == pid, "the hub waited for its database, and did not end"
    assert psutil.pid_exists(pid)
    hub.kill()
    hub.start()
    assert [job for mine in answered for job in mine if not known(hub, job)] == []


def test_a_hub_that_stands_by_says_who_leads_and_takes_over_from_one_that_was_killed(hubs: Hubs) -> None:
    first = hubs()
    assert submit(first, "a1") == 201
    second = stand_by(hubs)
    assert f"leads at {first.url}" in second.said
    first.kill()
    second.wait()
    assert known(second, "a1")
    assert submit(second, "a2") == 201
    assert "took over with a warm state" in second.said


def test_a_leader_that_slept_steps_down_and_comes_back_when_the_other_ends(hubs: Hubs) -> None:
    first = hubs()
    with first.worker("w1") as worker:
        worker.register()
        second = stand_by(hubs)
        process = psutil.Process(first.pid)
        process.send_signal(signal.SIGSTOP)
        second.wait()
        assert submit(second, "a1") == 201
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: ask(first, "GET", "/hub/status")[1].get("role") == "standby")
    # What it is asked now the other one does.
    wait_until(lambda: submit(first, "a2") == 201)
    assert known(second, "a2")
    assert first.pid == process.pid
    second.stop()
    wait_until(lambda: submit(first, "a3") in (200, 201))
    assert (known(first, "a1"), known(first, "a2")) == (True, True)


def test_a_home_that_leads_for_the_first_time_gets_a_token_though_it_has_stood_by(hubs: Hubs) -> None:
    first = hubs()
    second = stand_by(hubs)
    (second.home / "token").unlink()
    first.stop()
    second.wait()
    assert submit(second, "own") == 201
    assert (second.home / "token").read_text() != (first.home / "token").read_text()


def test_one_that_stands_by_ends_when_told(hubs: Hubs) -> None:
    hubs()
    for _ in range(4):  # it may be told in the middle of a look at the leader's turns, or between two
        second = stand_by(hubs)
        assert second._process is not None
        second._process.send_signal(signal.SIGTERM)
        assert second._process.wait(60) == 0, (second.home / "hub.err").read_text()


def test_a_hub_ends_though_its_server_is_away(hubs: Hubs, servers: Callable[..., Server]) -> None:
    server = servers()
    hub = hubs(url=server.url("postgres"))
    server.kill()
    assert hub._process is not None
    hub._process.send_signal(signal.SIGTERM)
    hub._process.wait(60)


def test_the_doctor_looks_at_the_database_with_a_hub_and_without(hubs: Hubs) -> None:
    hub = hubs()
    submit(hub, "a1")
    (check,) = [one for one in ask(hub, "GET", "/doctor")[1]["checks"] if one["name"] == "store"]
    assert check["ok"]
    assert "leads; the lease is renewed" in check["detail"]
    hub.stop()
    url = str(hub._settings["store"])
    found = examine_home(hub.home, url)
    checks = {one["name"]: one for one in found["checks"]}
    assert (found["ok"], checks["witness"]["ok"], found["facts"]) == (True, True, {"jobs pending": 1})
    assert "nobody leads" in checks["store"]["detail"]
    checks = {one["name"]: one for one in examine_home(hub.home, url.replace(PASSWORD, "wrong"))["checks"]}
    assert not checks["store"]["ok"]
    assert "does not let this user in" in checks["store"]["detail"]


def test_the_password_is_nowhere(hubs: Hubs) -> None:
    hub = hubs()
    submit(hub, "a1")
    hub.stop()
    hub.start()
    words = psutil.Process(hub.pid).cmdline()
    told = [ask(hub, "GET", path)[1] for path in ("/config", "/doctor", "/hub")]
    assert "postgres://dray@127.0.0.1" in str(told)
    assert PASSWORD not in str(told)
    hub.stop()
    held = [file for file in hub.home.rglob("*") if file.is_file() and PASSWORD.encode() in file.read_bytes()]
    assert (held, PASSWORD in " ".join(words)) == ([], False)


def roles(hub: RunningHub) -> dict[str, str]:
    """The part of each hub, by its address, as the one that leads lists them."""
    return {row["url"]: row["role"] for row in ask(hub, "GET", "/hubs")[1].get("hubs", ())}


def test_hubs_are_listed_with_their_parts_and_how_far_they_are(hubs: Hubs) -> None:
    first = hubs()
    assert submit(first, "a1") == 201
    second = stand_by(hubs)
    standing = second.address
    wait_until(lambda: roles(first) == {first.url: "leader", standing: "standby"})
    wait_until(lambda: [row["lag"] for row in ask(first, "GET", "/hubs")[1]["hubs"]] == [0, 0])
    own = ask(first, "GET", "/hub/status")[1]
    assert (own["role"], own["leader"], own["takeover"]["cause"]) == ("leader", first.url, "first")
    # One that stands by says so to anybody, and nothing else.
    other = look(standing, "/api/v1/hub/status")
    assert (other["role"], other["leader"], other["lag"]) == ("standby", first.url, 0)
    wait_until(lambda: look(standing, "/api/v1/jobs")["error"]["code"] == "unauthenticated")
    assert look(standing, "/healthz") == {"status": "ok"}
    checks = {check["name"]: check for check in ask(first, "GET", "/doctor")[1]["checks"]}
    assert "1 stand by" in checks["hubs"]["detail"]
    assert checks["clock"]["ok"]
    assert "may lose commits" in checks["replication"]["detail"]
    second.stop()
    wait_until(lambda: list(roles(first)) == [first.url])


def test_a_hub_hands_over_when_it_is_asked_to_and_stands_by(hubs: Hubs) -> None:
    first = hubs()
    assert ask(first, "POST", "/hub/resign")[0] == 409, "nobody stands by"
    second = stand_by(hubs)
    wait_until(lambda: "standby" in roles(first).values())
    assert submit(first, "a1") == 201
    status, told = ask(first, "POST", "/hub/resign")
    assert (status, told["resigned"]) == (200, True)
    second.wait()
    assert known(second, "a1")
    assert ask(second, "GET", "/hub/status")[1]["takeover"]["cause"] == "resigned"
    wait_until(lambda: look(first.url, "/api/v1/hub/status")["role"] == "standby")
    assert "took over with a warm state" in second.said
    wait_until(lambda: submit(first, "a2") == 201)
    assert known(second, "a2")
    records = ask(second, "GET", "/audit")[1]["records"]
    assert "hub.resign" in [record["action"] for record in records]


def test_one_that_is_ended_hands_over(hubs: Hubs) -> None:
    first, second = hubs(), stand_by(hubs)
    first.stop()
    second.wait()
    assert ask(second, "GET", "/hub/status")[1]["takeover"]["cause"] == "resigned"
