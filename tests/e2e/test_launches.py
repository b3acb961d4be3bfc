"""Launchers with real agents: work waits, a machine comes, does it and goes; and sites that break their word."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.cluster import Cluster, is_alive, wait_for

# A site in thirty lines: it keeps a file for each machine, starts agents as children of init, and lists what is alive.
SITE = f"""\
#!{sys.executable}
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(__file__).parent / "machines"
folder.mkdir(exist_ok=True)
verb, how, *rest = sys.argv[1:]

def start(mark=""):
    start.script = start.script or sys.stdin.read()
    script = start.script.replace(f"/dray-{{rest[0]}}", f"/dray{{mark}}-{{rest[0]}}")
    log = open(folder / f"{{rest[0]}}{{mark}}.log", "ab")
    given = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    child = subprocess.Popen(["sh", "-c", script], **given)
    (folder / f"{{rest[0]}}{{mark}}.pid").write_text(str(child.pid))
    return child.pid
start.script = ""

def alive(pid):
    try:
        return pathlib.Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

if verb == "start":
    with open(folder / "starts", "a") as file:
        file.write(rest[0] + "\\n")
    if how == "hang":
        time.sleep(60)
    if how == "broken":
        sys.exit("no machine has room: ask the site's admin")
    if how == "liar":
        print(999999999)
        sys.exit()
    first = start()
    if how == "twice":
        start("x")
    if how == "slow":
        time.sleep(2)
    print(first)
elif verb == "end":
    try:
        os.kill(int(rest[0]), 15)
    except ProcessLookupError:
        pass
elif verb == "list":
    for each in sorted(folder.glob("*.pid")):
        if alive(each.read_text()):
            print(each.stem.rstrip("x"), each.read_text(), "runs")
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    """A hub without a worker of its own, and a site that it may start some on."""
    cluster = Cluster()
    try:
        command = cluster.folder / "site"
        command.write_text(SITE)
        command.chmod(0o755)
        # Homes of agents lie in the machine's temporary folder.
        cluster.env["TMPDIR"] = str(cluster.folder)
        cluster.env["DRAY_HUB_LAUNCH_LOOK_S"] = "0.2"
        cluster.start_hub()
        yield cluster
    finally:
        cluster.close()


def launcher(cluster: Cluster, how: str, **more: Any) -> dict[str, Any]:
    command, program = str(cluster.folder / "site"), str(Path(sys.executable).with_name("dray"))
    return {
        "command": [command, "start", how, "{id}"],
        "end": [command, "end", how, "{handle}"],
        "list": [command, "list", how],
        "offers": {"cpus": 1, "labels": {"site": how}},
        "wait_s": 0,
        "idle_s": 1,
        "command_s": 20,
        "program": program,
        **more,
    }


def govern(cluster: Cluster, **launchers: dict[str, Any]) -> None:
    policy = cluster.folder / "policy.yaml"
    policy.write_text(
        yaml.safe_dump({"providers": {name: {"launch": one} for name, one in launchers.items()}})
    )
    done = cluster.dray("config", "apply", str(policy))
    assert done.code == 0, done.err


def launches(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    answer = cluster.call("GET", "/launches?all=true").json
    return [one for one in answer["launches"] if one["launcher"] == name]


def reaches(cluster: Cluster, name: str, *states: str) -> dict[str, Any]:
    """The first launch of a launcher, once it is in one of these states."""

    def look() -> dict[str, Any] | None:
        found = launches(cluster, name)
        return found[0] if found and found[0]["state"] in states else None

    return wait_for(look, f"the first launch of {name} is {states}") or {}


def starts(cluster: Cluster, launch_id: str) -> int:
    file = cluster.folder / "machines" / "starts"
    return file.read_text().split().count(launch_id) if file.exists() else 0


def pids(cluster: Cluster) -> list[int]:
    return [int(each.read_text()) for each in (cluster.folder / "machines").glob("*.pid")]


def test_work_that_waits_has_a_machine_started_which_goes_when_it_idles(site: Cluster) -> None:
    govern(site, good=launcher(site, "good"))
    job = site.submit("true", require=["site=good", "provider=good"])
    site.wait_state(job, "succeeded")
    one = reaches(site, "good", "joined", "draining", "ending", "ended")
    assert one["job_id"] == job
    assert one["why"] == f"for {job}"
    over = reaches(site, "good", "ended")
    wait_for(lambda: not is_alive(int(over["handle"])), "its machine is ended")
    told = site.dray("launch", "ls", "--all", "good")
    assert one["id"] in told.out
    assert "idle for" in told.out
    assert '"ended"' in site.dray("launch", "show", "-o", "json", one["id"]).out
    site.check()


def test_a_hub_that_is_killed_while_a_machine_starts_finds_it_again_and_starts_no_other(
    site: Cluster,
) -> None:
    govern(site, slow=launcher(site, "slow", idle_s=600))
    job = site.submit("true", require=["site=slow"])
    one = reaches(site, "slow", "starting")
    wait_for(lambda: starts(site, one["id"]), "its command runs")
    site.kill_hub()
    site.start_hub()
    site.wait_state(job, "succeeded")
    found = wait_for(
        lambda: next((each for each in launches(site, "slow") if each["handle"]), None),
        "it is found by the list",
    )
    assert found is not None
    assert (found["id"], found["state"]) == (one["id"], "joined")
    assert [starts(site, each["id"]) for each in launches(site, "slow")] == [1]
    # Stopped by hand while it holds work: that ends first.
    held = site.submit(
        "sh", "-c", f"until test -e {site.folder}/go; do sleep 0.05; done", require=["site=slow"]
    )
    site.wait_running(held)
    stopped = site.dray("launch", "stop", one["id"])
    assert stopped.code == 0
    assert "1 task still running" in stopped.out
    assert reaches(site, "slow", "draining")["tasks"] == 1
    (site.folder / "go").touch()
    site.wait_state(held, "succeeded")
    reaches(site, "slow", "ended")
    wait_for(lambda: not is_alive(int(found["handle"])), "its machine is ended")


def test_a_machine_that_is_started_twice_joins_once(site: Cluster) -> None:
    govern(site, twice=launcher(site, "twice", idle_s=600))
    job = site.submit("true", require=["site=twice"])
    site.wait_state(job, "succeeded")
    one = reaches(site, "twice", "joined")
    workers = [each["id"] for each in site.call("GET", "/workers").json["workers"] if each["id"] == one["id"]]
    assert workers == [one["id"]]
    # Whoever comes second has no token; the site's list names two, of which one is the launch's.
    wait_for(
        lambda: any(
            "gives this worker no token" in log.read_text()
            for log in (site.folder / "machines").glob(f"{one['id']}*.log")
        ),
        "the second is refused",
    )
    assert len(list((site.folder / "machines").glob(f"{one['id']}*.log"))) == 2
    site.dray("launch", "stop", one["id"])
    reaches(site, "twice", "ended")


@pytest.mark.parametrize(
    ("how", "more", "words"),
    [
        ("broken", {}, "no machine has room"),
        ("liar", {"start_s": 1}, "did not join"),
        ("hang", {"command_s": 0.5, "start_s": 2}, "did not"),
    ],
)
def test_a_site_that_breaks_its_word_fails_and_is_left_alone_for_a_while(
    site: Cluster, how: str, more: dict[str, Any], words: str
) -> None:
    govern(site, **{how: launcher(site, how, **more)})
    job = site.submit("true", require=[f"site={how}"])
    one = reaches(site, how, "failed")
    assert words in one["why"], one
    assert starts(site, one["id"]) == 1
    why = site.dray("why", job)
    assert "its last start failed" in why.out, why.out
    told = site.dray("launch", "start", how)
    assert told.code != 0
    assert "its last start failed" in told.err
    site.call("POST", f"/jobs/{job}/cancel")


def test_a_launchers_token_lets_its_own_worker_join_and_no_other(site: Cluster) -> None:
    line = site.folder / "line"
    keep = launcher(site, "good", command=["sh", "-c", 'echo "$DRAY_JOIN" > "$0"', str(line)], min=1)
    govern(site, keep=keep)
    one = reaches(site, "keep", "starting")
    words = wait_for(lambda: line.exists() and line.read_text().split(), "the command ran") or []
    token, other = words[words.index("--token") + 1], "somebody-else"
    refused = site.call("POST", f"/workers/{other}/token", token=token)
    assert refused.status == 409
    assert one["id"] in refused.json["error"]["message"]
    assert site.call("POST", f"/workers/{one['id']}/token", token=token).status == 201
    assert site.call("POST", f"/workers/{one['id']}/token", token=token).status in (401, 409)
    done = site.dray("launch", "stop", one["id"], "-o", "json")
    assert done.json["state"] == "ending"
    govern(site)


def test_nothing_is_left_of_the_machines(site: Cluster) -> None:
    govern(site)
    wait_for(
        lambda: all(
            one["state"] in ("ended", "failed")
            for name in ("good", "slow", "twice")
            for one in launches(site, name)
        ),
        "all are over",
    )
    for pid in pids(site):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
