"""Services with several nodes as they are used: who answers a forward and the proxy, how one member is named by `exec`,
`attach` and `logs`, and what is said while a group is replaced or not up.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any

import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Answer, Cluster, Finished, wait_dead, wait_for
from tests.e2e.test_exec import begin, sit_at
from tests.e2e.test_forward import dial, forwarding, make_token, wait_endpoints
from tests.e2e.test_gang_services import JOIN

OWNER = getpass.getuser()
# Members meet at rank 0, and listen before they go there: where rank 0 listens, all of the group do. Each says who it
# is, and what it was asked for before. Asked to stop, it waits for as long as there is a file `stay`.
SERVER = (
    JOIN
    + """
import contextlib, http.server, json, os, pathlib, signal, sys, threading

index, rank, size, generation = (
    int(os.environ[name]) for name in ("DRAY_TASK_INDEX", "RANK", "WORLD_SIZE", "DRAY_GANG_GENERATION")
)
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
asked = []

def stop(*_):
    while pathlib.Path("stay").exists():
        time.sleep(0.02)
    os._exit(0)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        who = {"index": index, "rank": rank, "generation": generation}
        said = {"asked": asked} if self.path == "/asked" else who
        if self.path not in ("/check", "/asked"):
            asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())
        with contextlib.suppress(OSError):
            while self.path == "/slow":
                self.wfile.write(b" ")
                time.sleep(0.02)

    def log_message(self, *words):
        pass

def listen():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["DRAY_PORT"])), Handler)
    threading.Thread(target=server.serve_forever).start()

signal.signal(signal.SIGTERM, stop)
print("generation", generation, "pid", os.getpid(), flush=True)
if rank == 0:
    listener = socket.create_server(place)
    peers = [listener.accept()[0] for _ in range(size - 1)]
    listen()
else:
    if "mute" not in sys.argv:
        listen()
    peer = join(place)
while True:
    time.sleep(60)
"""
)
CHECK = {"http": "/check", "interval_s": 0.2}


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        for name in ("w1", "w2"):
            cluster.start_agent(name, 2, "", "--service-slots", "8")
        (cluster.folder / "server.py").write_text(SERVER)
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def serving(
    site: Cluster, name: str, groups: int = 1, words: tuple[str, ...] = (), **terms: Any
) -> Iterator[str]:
    """A service with groups of two, and its id, which is not its name."""
    command = (sys.executable, "server.py", *words)
    given = {"type": "service", "name": name, "node_count": 2, "replicas": groups, "min_cpu_cores": 0}
    job_id = site.submit(*command, **{**given, "ports": ["http"], "health_check": CHECK, **terms})
    try:
        wait_endpoints(site, name, groups)
        yield job_id
    finally:
        (site.folder / "stay").unlink(missing_ok=True)
        site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 0})
        site.wait_state(job_id)


def get(sock: socket.socket, path: str) -> dict[str, Any]:
    """Who answers a request; the connection stays as it is."""
    sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    text = b""
    while not text.rstrip().endswith(b"}"):
        data = sock.recv(1 << 16)
        assert data, f"it ended early: {text!r}"
        text += data
    return dict(json.loads(text.rpartition(b"\r\n\r\n")[2]))


def ask(port: int, path: str) -> dict[str, Any]:
    with dial(port) as sock:
        return get(sock, path)


def proxied(site: Cluster, name: str, path: str, token: str = "") -> Answer:
    connection = HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    try:
        sent = {"Authorization": f"Bearer {token or site.token}"}
        connection.request("GET", f"/proxy/{name}{path}", headers=sent)
        answer = connection.getresponse()
        return Answer(answer.status, {}, answer.read())
    finally:
        connection.close()


def pid_of(site: Cluster, job_id: str, index: int, generation: int = 1) -> int:
    start = f"generation {generation} pid "

    def printed() -> int:
        lines = site.logs(job_id, task=index).decode().splitlines()
        return next((int(line.removeprefix(start)) for line in lines if line.startswith(start)), 0)

    return wait_for(printed, f"member {index} of generation {generation} has printed its pid")


def is_refused(port: int) -> bool:
    try:
        ask(port, "/")
    except (OSError, AssertionError):
        return True
    return False


def test_callers_get_to_rank_0_and_to_another_member_by_its_own_name(site: Cluster) -> None:
    with serving(site, "wide", 2) as job_id:
        with forwarding(site, "wide") as (port, _), contextlib.ExitStack() as stack:
            # Connections that stand count as busy: both groups get theirs.
            socks = [stack.enter_context(dial(port)) for _ in range(6)]
            found = [get(sock, "/slow") for sock in socks]
            assert {(one["index"], one["rank"]) for one in found} == {(0, 0), (2, 0)}
        answers = [proxied(site, name, "/proxied").json for name in ("wide", job_id) for _ in range(6)]
        assert {one["rank"] for one in answers} == {0}
        asked: dict[int, list[str]] = {}
        for name, index in (("wide/0", 0), ("wide/1", 1), ("wide/2", 2), (f"{job_id}/3", 3)):
            with forwarding(site, name, "http") as (port, _):
                assert [ask(port, "/named")["index"] for _ in range(4)] == [index] * 4
                asked[index] = ask(port, "/asked")["asked"]
        assert asked[1] == asked[3] == ["/named"] * 4, "what was asked for by its name, and nothing else"
        for path, count in (("/slow", 6), ("/proxied", 12)):
            assert asked[0].count(path) + asked[2].count(path) == count, path
        missing = site.dray("forward", "wide/9")
        assert missing.code == 1
        assert "service wide has no replica 9: it has 0, 1, 2, 3 (`dray service show wide`)" in missing.err
        shown = site.dray("service", "show", "wide/1")
        assert (shown.code, "write wide" in shown.err) == (2, True), shown
        columns = site.dray("service", "show", "wide").out.splitlines()
        assert next(line.split()[:3] for line in columns if line.startswith("REPLICA")) == [
            "REPLICA",
            "GROUP",
            "RANK",
        ]
        assert [line.split()[1:3] for line in columns if line.startswith(f"{job_id}/3")] == [["1", "1"]]


def test_a_member_that_does_not_listen_is_told_apart_from_a_service_that_is_down(site: Cluster) -> None:
    with serving(site, "mute", words=("mute",)) as job_id:
        assert {proxied(site, "mute", "/").json["rank"] for _ in range(4)} == {0}
        with forwarding(site, "mute") as (port, said):
            assert {ask(port, "/")["rank"] for _ in range(6)} == {0}
            assert "does not answer" not in said.read_text(), "nobody else is asked first"
        with forwarding(site, "mute/1") as (port, said):
            assert is_refused(port)
            wait_for(lambda: f"{job_id}/1 on " in said.read_text(), "it is said who does not answer")
            assert "answer at rank 0 alone, where `dray forward mute` leads" in said.read_text()
            assert "health_check" not in said.read_text(), "none is made of its port"


def test_exec_attach_and_logs_name_one_member(site: Cluster) -> None:
    with serving(site, "wide") as job_id:
        workers = [one["worker"] for one in site.call("GET", "/services/wide").json["replica_list"]]
        several = site.dray("exec", "wide", "--", "true")
        assert several.code == 125
        assert (
            f"wide has 2 tasks that run: say which by its id ({job_id}/0 of rank 0 on {workers[0]}, "
            f"{job_id}/1 of rank 1 on {workers[1]})" in several.err
        )
        for name, index in (("wide/0", 0), ("wide/1", 1), (f"{job_id}/1", 1)):
            done = site.dray("exec", name, "--", "sh", "-c", "echo $RANK $DRAY_TASK_ID")
            assert (done.code, done.out) == (0, f"{index} {job_id}/{index}\n")
        records = site.call("GET", "/audit", limit=20).json["records"]
        noted = [
            one["detail"] for one in records if (one["action"], one["target"]) == ("exec", f"{job_id}/1")
        ]
        assert f"on {workers[1]}: sh" in noted[0]
        missing = site.dray("exec", "wide/7", "--", "true")
        assert missing.code == 125
        assert "wide has no replica 7 now: `dray service show wide` lists" in missing.err

        pids = [pid_of(site, job_id, index) for index in (0, 1)]
        own = f"generation 1 pid {pids[1]}\n"
        for words in (("logs", "wide/1"), ("logs", "-n", "1", "wide/1"), ("service", "logs", "wide/1")):
            assert site.dray(*words).out == own, words
        whole = site.dray("logs", "wide").out.splitlines()
        assert whole == [f"{index} | generation 1 pid {pid}" for index, pid in enumerate(pids)]
        attached, shown = site.begin("attach", "wide/1", name="attached")
        wait_for(lambda: own in shown.read_text(), "the output of that member is followed")
        restarted = site.dray("service", "restart", "wide/0")
        assert restarted.out == "wide: restarting group 0, which wide/0 is of\n"
        later = f"generation 2 pid {pid_of(site, job_id, 1, 2)}\n"
        wait_for(lambda: later in shown.read_text(), "it goes on with the next start of the group")
        wait_dead(pids)
    assert attached.wait(DEADLINE_S) == 0, "the service was stopped"
    assert f"pid {pids[0]}" not in shown.read_text(), "of no other member"


def test_each_member_has_a_terminal_of_its_own(site: Cluster) -> None:
    talk = 'echo rank $RANK; while read -r words; do echo "$RANK heard $words"; done'
    given: dict[str, Any] = {
        "type": "service",
        "name": "talk",
        "node_count": 2,
        "interactive": True,
        "min_cpu_cores": 0,
    }
    job_id = site.submit("sh", "-c", talk, **given)
    try:
        wait_endpoints(site, "talk", 1)
        unnamed = site.dray("attach", "talk")
        assert unnamed.code == 2
        assert "talk has several tasks: say which, as talk/0" in unnamed.err
        with sit_at(site, "attach", "talk/1") as terminal:
            terminal.wait(b"rank 1")
            terminal.type(b"hello\r")
            terminal.wait(b"1 heard hello")
            terminal.type(b"\r~.")
            assert terminal.end() == 0
        assert b"heard hello" not in site.logs(job_id, task=0)
    finally:
        site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 0})
        site.wait_state(job_id)


def test_while_a_group_is_replaced_nobody_gets_to_what_is_left_of_it(site: Cluster) -> None:
    with serving(site, "wide", job_tier="evaluation") as job_id, contextlib.ExitStack() as stack:
        port, said = stack.enter_context(forwarding(site, "wide"))
        member, of_member = stack.enter_context(forwarding(site, "wide/1"))
        assert ask(member, "/")["index"] == 1
        beside = begin(site, "exec", "wide/0", "--", "sh", "-c", "echo begun; exec sleep 1000")
        stack.enter_context(beside)
        stack.callback(beside.kill)
        assert beside.stdout is not None
        assert beside.stdout.readline() == b"begun\n"
        slow = stack.enter_context(dial(port))
        assert get(slow, "/slow")["generation"] == 1
        pids = [pid_of(site, job_id, index) for index in (0, 1)]
        rank_0 = site.call("GET", "/services/wide").json["replica_list"][0]["worker"]

        (site.folder / "stay").touch()
        os.kill(pids[1], signal.SIGKILL)
        wait_endpoints(site, "wide", 0)
        refused = proxied(site, "wide", "/")
        assert (refused.status, refused.error) == (
            502,
            "no replica of wide is ready: `dray service show wide` tells why",
        )
        assert is_refused(port)
        wait_for(lambda: "no replica of wide is ready" in said.read_text(), "it is said to callers")
        assert is_refused(member)
        why = f"wide/1 is of a group that is not ready ({job_id}/0 asked to stop on {rank_0} with its group)"
        wait_for(lambda: why in of_member.read_text(), "it is said why the member cannot be reached")
        late = site.dray("exec", "wide/0", "--", "true")
        assert late.code == 125
        assert f"wide/0 does not run now (asked to stop on {rank_0} with its group)" in late.err
        gone = site.dray("exec", "wide", "--", "true")
        assert "no replica of wide runs now: `dray service show wide` tells why" in gone.err
        early = site.begin("forward", "wide/1", name="early")
        stack.callback(early[0].wait)
        stack.callback(early[0].terminate)
        hint = "no replica of wide is ready yet: `dray service show wide` tells why"
        wait_for(lambda: hint in early[1].read_text(), "it is said where to look, by the service's name")
        assert slow.recv(1) == b" ", "what stood goes on until the last of the group has gone"

        (site.folder / "stay").unlink()
        wait_dead(pids)
        with contextlib.suppress(ConnectionError):
            while slow.recv(1 << 16):
                pass
        assert beside.wait(DEADLINE_S) == 128 + signal.SIGHUP, "what ran beside a member ends with it"
        wait_endpoints(site, "wide", 1)
        assert ask(port, "/") == {"index": 0, "rank": 0, "generation": 2}
        assert ask(member, "/") == {"index": 1, "rank": 1, "generation": 2}
        assert proxied(site, "wide", "/").json["generation"] == 2
        assert site.dray("exec", "wide/1", "--", "printenv", "DRAY_GANG_GENERATION").out == "2\n"


def test_a_group_that_is_not_up_says_so_to_each_as_he_calls_it(site: Cluster) -> None:
    given: dict[str, Any] = {
        "type": "service",
        "name": "loop",
        "node_count": 2,
        "ports": ["http"],
        "min_cpu_cores": 0,
    }
    script = "test $RANK = 0 && exec sleep 1000; echo private words; exit 3"
    job_id = site.submit("sh", "-c", script, share=["ben"], **given)
    ben = {"DRAY_TOKEN": make_token(site, "ben", "submit", "read")}

    def exec_in(name: str, env: Mapping[str, str] = {}) -> Finished:
        return site.dray("exec", name, "--", "true", env=env)

    try:
        # It is started again and again, after rests that get longer.
        own = wait_for(
            lambda: text if "private words" in (text := exec_in("loop/1").err) else "",
            "its owner is told why",
        )
        assert f"loop/1 does not run now ({job_id}/1 on " in own
        for name in (f"loop@{OWNER}/1", f"{job_id}/1"):
            other = exec_in(name, ben)
            assert (other.code, "no task" in other.err, "private" in other.err) == (125, True, False), other
        with forwarding(site, f"loop@{OWNER}/1", env=ben) as (port, said):
            look = f"is of a group that is not ready: `dray service show loop@{OWNER}` tells more"
            wait_for(
                lambda: is_refused(port) and look in said.read_text(),
                "he is told where to look, as he calls it",
            )
            assert "private" not in said.read_text()
        look = f"no replica of loop@{OWNER} is ready: `dray service show loop@{OWNER}` tells why"
        wait_for(lambda: proxied(site, f"loop@{OWNER}", "/", ben["DRAY_TOKEN"]).error == look, look)
    finally:
        site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 0})
        site.wait_state(job_id)


def test_whom_a_group_is_shared_with_reaches_what_it_serves_until_it_is_not(site: Cluster) -> None:
    token = make_token(site, "ben", "submit", "read")
    ben = {"DRAY_TOKEN": token}
    named = f"wide@{OWNER}"
    with serving(site, "wide", words=("mute",)) as job_id, contextlib.ExitStack() as stack:
        assert proxied(site, named, "/", token).status == 404
        assert site.dray("service", "share", "wide", "ben").code == 0
        assert {proxied(site, named, "/", token).json["rank"] for _ in range(4)} == {0}
        port, said = stack.enter_context(forwarding(site, named, env=ben))
        slow = stack.enter_context(dial(port))
        assert get(slow, "/slow") == {"index": 0, "rank": 0, "generation": 1}
        for member in (f"{named}/0", f"{named}/1"):
            refused = site.dray("exec", member, "--", "true", env=ben)
            assert (refused.code, "no task" in refused.err) == (125, True), refused
        assert "there is no job" in site.dray("logs", f"{job_id}/1", env=ben).err
        with forwarding(site, f"{named}/1", env=ben) as (deaf, told):
            assert is_refused(deaf)
            wait_for(lambda: "does not answer" in told.read_text(), "he is told that nothing listens there")
            assert f"{OWNER}, whose service it is, can see what it printed" in told.read_text()
        assert site.dray("service", "unshare", "wide").code == 0
        with contextlib.suppress(ConnectionError):
            while slow.recv(1 << 16):
                pass
        assert is_refused(port)
        wait_for(lambda: f"no service '{named}' runs" in said.read_text(), "for him there is none")


def test_a_rolling_restart_of_a_group_fails_no_request(site: Cluster) -> None:
    with serving(site, "wide", update={"settle_s": 0.2, "drain_s": 0.2}) as job_id:
        before = [pid_of(site, job_id, index) for index in (0, 1)]
        with forwarding(site, "wide") as (port, _):
            seen: list[tuple[int, int]] = []

            def request() -> None:
                answers = (ask(port, "/"), proxied(site, "wide", "/").json)
                seen.extend((one["index"], one["rank"]) for one in answers)

            def replaced() -> bool:
                request()
                return not site.call("GET", "/services/wide").json["update"] and seen[-1] == (2, 0)

            request()
            assert site.dray("service", "restart", "wide").code == 0
            wait_for(replaced, "the group is another one")
            assert set(seen) == {(0, 0), (2, 0)}, "the one or the other, by its rank 0"
        wait_dead(before)
        gone = site.dray("exec", "wide/1", "--", "true")
        assert "wide has no replica 1 now" in gone.err
        assert site.dray("exec", "wide/3", "--", "printenv", "RANK").out == "1\n"
