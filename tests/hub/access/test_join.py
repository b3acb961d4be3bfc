"""Join tokens: exchanged for a worker's own, for new workers only, and good for nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.e2e.cluster import DRAY, Cluster, wait_for
from tests.hub.asking import ask
from tests.hub.workers.test_owners import audited, make, refusal, worker_check
from websockets.exceptions import ConnectionClosed

from dray.testing import MockWorker, RunningHub, running_hub


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as made:
        yield made


def join(hub: RunningHub, token: str, name: str) -> tuple[int, Any]:
    return ask(hub, "POST", f"/workers/{name}/token", token=token)


def test_a_join_token_gets_each_worker_a_token_of_its_own(hub: RunningHub) -> None:
    made = make(hub, "join")
    assert made["token"].startswith("drayjoin_")
    assert made["join"] == f"dray worker start --hub {hub.url} --token {made['token']}"
    assert made["expires_at"] is not None, "24 hours unless it is said otherwise"
    own = [join(hub, made["token"], name) for name in ("j1", "j2")]
    assert [(status, answer["worker"], answer["scopes"]) for status, answer in own] == [
        (201, "j1", ["worker"]),
        (201, "j2", ["worker"]),
    ]
    first, second = (answer["token"] for _, answer in own)
    with MockWorker(hub.url, first, "j1") as one, MockWorker(hub.url, second, "j2") as two:
        one.register()
        two.register()
        ask(hub, "DELETE", f"/tokens/{own[0][1]['id']}")
        with pytest.raises(ConnectionClosed):
            one.recv("never", 20)
        two.heartbeat()
        two.recv("ack")
    with MockWorker(hub.url, second, "j3") as thief:
        assert "speaks for worker j2 and no other" in refusal(thief)


def test_a_join_token_takes_no_id_over(hub: RunningHub) -> None:
    made = make(hub, "join")
    status, own = join(hub, made["token"], "mine")
    assert status == 201
    for taken in ("mine", "admins"):
        with hub.worker("admins") as admin:
            admin.register()
        status, answer = join(hub, made["token"], taken)
        assert (status, answer["error"]["code"]) == (409, "conflict")
        assert own["id"] not in answer["error"]["message"]
    with hub.worker("mine") as early:
        assert "another token" in refusal(early), "it is kept for whom it was made for, also before it came"
    assert made["id"] in audited(hub, "worker.refuse", "mine")
    assert f"token {made['id']}" in worker_check(hub)["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/workers"), ("POST", "/tokens"), ("GET", "/events")],
)
def test_a_join_token_opens_nothing_else(hub: RunningHub, method: str, path: str) -> None:
    made = make(hub, "join")
    status, answer = ask(
        hub, method, path, {"command": ["true"]} if method == "POST" else None, token=made["token"]
    )
    assert status == 403
    assert "is a join token" in answer["error"]["message"]
    with pytest.raises(websockets.InvalidStatus, match="403"), MockWorker(hub.url, made["token"], "x"):
        pass


def test_only_admins_and_join_tokens_make_workers_tokens(hub: RunningHub) -> None:
    for scope in ("worker", "submit", "read"):
        assert join(hub, make(hub, scope)["token"], "any")[0] == 403
    assert ask(hub, "POST", "/tokens", {"scopes": ["join", "submit"]})[0] == 400
    assert ask(hub, "POST", "/tokens", {"scopes": ["submit"], "worker": "w"})[0] == 400


def test_an_expired_join_token_lets_nobody_in(hub: RunningHub, wait_until: Callable[..., Any]) -> None:
    made = make(hub, "join", expires_s=0.05)
    wait_until(lambda: join(hub, made["token"], "late")[0] == 401)


def test_an_admin_makes_a_workers_token_anew_and_the_old_one_ends(hub: RunningHub) -> None:
    old = make(hub, "worker", worker="again")
    with MockWorker(hub.url, old["token"], "again") as worker:
        worker.register()
        new = make(hub, "worker", worker="again")
        with pytest.raises(ConnectionClosed, match=f"token {old['id']} was revoked"):
            worker.recv("never", 20)
    with MockWorker(hub.url, new["token"], "again") as worker:
        worker.register()
    listed = {token["id"]: token for token in ask(hub, "GET", "/tokens")[1]["tokens"]}
    assert (listed[old["id"]]["revoked"], listed[new["id"]]["worker"]) == (True, "again")


# --- the agent --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start_hub()
        yield made
    finally:
        made.close()


def test_an_agent_joins_by_stdin_and_keeps_a_token_of_its_own(cluster: Cluster) -> None:
    """No token in its arguments, its environment, its log or the hub's; a restart uses its own."""
    text = cluster.call("POST", "/tokens", {"scopes": ["join"]}).json["token"]
    home, log = cluster.folder / "w1", cluster.folder / "w1.log"
    words = [
        *DRAY,
        "worker",
        "start",
        "--home",
        str(home),
        "--name",
        "w1",
        "--backend",
        "cpu",
        "--hub",
        cluster.url,
    ]
    for round_no in range(2):
        typed = [*words, "--token", "-"] if not round_no else words
        with log.open("ab") as file:
            agent = subprocess.Popen(
                typed,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=cluster.env,
                start_new_session=True,
            )
        assert agent.stdin is not None
        agent.stdin.write(text.encode() + b"\n")
        agent.stdin.close()
        cluster.wait_worker("w1")
        own, worker, source = (home / "worker" / "token").read_text().split()
        assert (own[:5], worker, source) == ("dray_", "w1", text.split("_")[1])
        assert (home / "worker" / "token").stat().st_mode & 0o777 == 0o600
        shown = (
            Path(f"/proc/{agent.pid}/cmdline").read_bytes() + Path(f"/proc/{agent.pid}/environ").read_bytes()
        )
        said = shown.decode() + log.read_text() + cluster.hub_text()
        assert all(secret.split("_", 2)[2] not in said for secret in (own, text))
        agent.terminate()
        assert agent.wait(60) == 0
        cluster.wait_worker("w1", ("offline",))
    tokens = cluster.call("GET", "/tokens").json["tokens"]
    assert [token["worker"] for token in tokens if token["worker"]] == ["w1"], "exchanged once"


def test_the_agent_of_the_hubs_home_has_a_workers_token(cluster: Cluster) -> None:
    agent = cluster.start_agent("near", near=True)
    own, worker, source = (cluster.home / "worker" / "token").read_text().split()
    assert (worker, source) == ("near", f"home:{cluster.token.split('_')[1]}")
    assert cluster.call("GET", "/jobs", token=own).status == 403
    agent.kill()
    # Renamed: its token speaks for the old name, so it gets another.
    renamed = cluster.start_agent("renamed", near=True)
    assert (cluster.home / "worker" / "token").read_text().split()[1] == "renamed"
    renamed.kill()
    # Its file lost: the id changes hands, which only the admin's token of this home can do.
    (cluster.home / "worker" / "token").unlink()
    cluster.start_agent("renamed", near=True)
    tokens = [t for t in cluster.call("GET", "/tokens").json["tokens"] if t["worker"] == "renamed"]
    assert sorted(token["revoked"] for token in tokens) == [False, True]


@pytest.mark.parametrize("by", ["a join token", "the admin's token in its home"])
def test_an_agent_whose_name_is_taken_says_so(cluster: Cluster, by: str) -> None:
    cluster.start_agent("w1")
    home = cluster.folder / "two"
    env = {"DRAY_WORKER_HUB": cluster.url, "DRAY_HOME": str(home)}
    if by == "a join token":
        env["DRAY_WORKER_TOKEN"] = cluster.call("POST", "/tokens", {"scopes": ["join"]}).json["token"]
    else:
        home.mkdir(mode=0o700)
        (home / "token").write_text(cluster.token)
    log = cluster.folder / "two.log"
    cluster.spawn([*DRAY, "worker", "start", "--name", "w1", "--backend", "cpu"], log, env)
    wait_for(lambda: "ERROR" in log.read_text(), "it says so")
    assert "worker id w1 belongs to another token: give this machine another --name" in log.read_text()
    cluster.wait_worker("w1")
    assert not (cluster.folder / "two" / "worker" / "token").exists()
