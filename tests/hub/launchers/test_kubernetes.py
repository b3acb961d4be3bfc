"""The Kubernetes launcher against an API server of this test's own, which keeps objects as the real one answers them.

There is no API server on machines that run this suite: what is asked of one is checked here, not what it does with it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("lightkube", reason="the extra [kubernetes] is not installed here")

from dray.core.model.policies.launching import KubernetesSite, Launch, Offered
from dray.hub.launchers.base import Machine, Order, SiteFault
from dray.hub.launchers.kubernetes import Kubernetes

SITE = KubernetesSite(image="registry.example/dray:1", namespace="ml")
LAUNCH = Launch(kubernetes=SITE, offers=Offered(cpus=2, memory=1 << 30, gpus=1), life_s=60, command_s=5)
JOIN = ("dray", "worker", "start", "--hub", "https://h:7373", "--token", "drayjoin_1_x", "--name", "k8s-1-1")


class Api(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, dict[str, Any]] = {}
        self.refuses = 0


class Handler(BaseHTTPRequestHandler):
    server: Api

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def fail(self, status: int, message: str) -> None:
        self.answer(status, {"kind": "Status", "apiVersion": "v1", "code": status, "message": message})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = f"{self.path.partition('?')[0]}/{body['metadata']['name']}"
        if self.server.refuses:
            self.fail(self.server.refuses, "jobs.batch is forbidden: exceeded quota")
        elif path in self.server.objects:
            self.fail(409, "already exists")
        else:
            self.server.objects[path] = body
            self.answer(201, body)

    def do_DELETE(self) -> None:
        known = self.server.objects.pop(self.path.partition("?")[0], None)
        if known is None:
            self.fail(404, "not found")
        else:
            self.answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def do_GET(self) -> None:
        items = [one for path, one in self.server.objects.items() if "/jobs/" in path]
        self.answer(200, {"kind": "JobList", "apiVersion": "batch/v1", "metadata": {}, "items": items})


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    server = Api()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield server
    server.shutdown()
    server.server_close()


def test_a_worker_is_a_job_with_its_token_in_a_secret_and_is_made_once(api: Api) -> None:
    async def walk() -> None:
        site, order = Kubernetes("k8s", LAUNCH), Order("k8s-1-1", "k8s", LAUNCH, JOIN)
        assert await site.start(order) == "dray-k8s-1-1"
        assert await site.start(order) == "dray-k8s-1-1"
        job = api.objects["/apis/batch/v1/namespaces/ml/jobs/dray-k8s-1-1"]
        secret = api.objects["/api/v1/namespaces/ml/secrets/dray-k8s-1-1"]
        assert secret["stringData"] == {"token": "drayjoin_1_x"}
        assert "drayjoin" not in json.dumps(job)
        assert job["spec"]["activeDeadlineSeconds"] == 60
        assert job["spec"]["backoffLimit"] == 0
        (agent,) = job["spec"]["template"]["spec"]["containers"]
        assert agent["command"] == [*JOIN[:5], *JOIN[7:]]
        assert agent["resources"]["limits"] == {"cpu": "2", "memory": str(1 << 30), "nvidia.com/gpu": "1"}
        assert await site.machines() == [Machine("k8s-1-1", "dray-k8s-1-1", "waits")]
        job["status"] = {"failed": 1}
        assert await site.machines() == []
        await site.end("k8s-1-1", "dray-k8s-1-1")
        await site.end("k8s-1-1", "dray-k8s-1-1")
        assert not api.objects

    asyncio.run(walk())


def test_what_a_cluster_refuses_is_told_in_its_own_words(api: Api) -> None:
    api.refuses = 403

    async def walk() -> None:
        with pytest.raises(SiteFault, match="exceeded quota"):
            await Kubernetes("k8s", LAUNCH).start(Order("k8s-1-1", "k8s", LAUNCH, JOIN))

    asyncio.run(walk())


def test_a_cluster_that_is_away_is_a_fault_of_the_site(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.shutdown()
    api.server_close()

    async def walk() -> None:
        with pytest.raises(SiteFault, match="cannot be reached"):
            await Kubernetes("k8s", LAUNCH).machines()

    asyncio.run(walk())
