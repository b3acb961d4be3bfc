"""Whoever holds the port is not the hub: after the hub's death another account takes its place, and gets nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from tests.e2e.cluster import DEADLINE_S, DRAY, Cluster, Finished, wait_for
from tests.e2e.stranger import Listener

import dray
from dray.errors import HubUnavailable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")


def command(cluster: Cluster, *words: str, **env: str) -> Finished:
    done = subprocess.run(
        [*DRAY, *words],
        env={**cluster.env, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def test_a_stranger_on_the_hubs_port_is_sent_nothing(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    near = cluster.start_agent("near", near=True)
    far = cluster.start_agent("far")  # told the port, not the home
    cluster.kill_hub()
    with Listener(cluster.port) as stranger:
        wait_for(lambda: "nobody" in near.text() and "nobody" in far.text(), "both agents see a stranger")
        said = command(cluster, "ps")
        assert (said.code, said.out) == (1, "")
        assert "is held by nobody" in said.err
        assert "nothing was sent" in said.err
        assert "dray up" in said.err
        with pytest.raises(HubUnavailable, match="nothing was sent"):
            dray.connect(cluster.url, cluster.token)
        # Those who were told to trust it are known by what they send: the listener does hear.
        trusting = command(cluster, "ps", DRAY_HUB_USER="nobody", DRAY_CLIENT_TIMEOUT_S="1")
        assert trusting.code == 1
        heard = stranger.heard(6)
        assert heard.count(cluster.token.encode()) == 1
        assert heard.startswith(b"GET /api/v1/jobs")
    cluster.start_hub()
    cluster.wait_worker("near")
    cluster.wait_worker("far")


def test_a_hub_is_reached_by_the_socket_of_its_home(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    near = cluster.start_agent("near", near=True)
    path = cluster.home / "hub.sock"
    assert path.is_socket()
    assert path.stat().st_mode & 0o777 == 0o600
    # With nobody at the port any more: a stranger has it, and the home is enough.
    (cluster.home / "hub.json").write_text(
        (cluster.home / "hub.json").read_text().replace(f":{cluster.port}", ":1")
    )
    assert command(cluster, "run", "--", "echo", "by the socket").out == "by the socket\n"
    with dray.connect(home=cluster.home) as hub:
        assert hub.submit(abs, -5).result(DEADLINE_S) == 5
        assert b"".join(hub.submit(["echo", "hi"]).logs(follow=True)) == b"hi\n"
    near.kill()
    cluster.start_agent("near", wait=False)
    cluster.wait_worker("near")
    cluster.stop_hub()
    assert not path.exists()


def test_a_socket_that_somebody_else_put_there_is_sent_nothing(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    cluster.kill_hub()
    # A home that others may write to, as one under a shared folder.
    cluster.folder.chmod(0o711)
    cluster.home.chmod(0o777)
    path = cluster.home / "hub.sock"
    path.unlink()
    with Listener(path=str(path)) as stranger:
        said = command(cluster, "ps")
        assert said.code == 1
        assert f"{path} belongs to nobody" in said.err
        os.chown(path, 0, 0)  # as one that was renamed over a socket of ours would look
        said = command(cluster, "ps")
        assert said.code == 1
        assert f"{path} is listened to by nobody" in said.err
        assert stranger.heard(1) == b""
