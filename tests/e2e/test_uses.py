"""Jobs that use services: they wait until those are ready, and reach them alone, by a token of their own."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.cluster import CALM, DEADLINE_S, Answer, Cluster, wait_for
from tests.e2e.test_forward import make_token, serve

import dray

# Says what it was asked, and by whom it was asked for a token.
MODEL = """
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([self.path, self.headers.get('Authorization')]).encode())
    def log_message(self, *args): pass
ThreadingHTTPServer(('127.0.0.1', int(os.environ['DRAY_PORT'])), Handler).serve_forever()
"""
ASK = """
import json, os, sys, urllib.request
(url,) = [os.environ[name] for name in os.environ if name.startswith('DRAY_SERVICE_') and name.endswith('_URL')]
token = os.environ['DRAY_SERVICE_TOKEN']
asked = urllib.request.Request(url + '/predict?x=1', headers={'Authorization': 'Bearer ' + token})
print(json.dumps({'said': json.loads(urllib.request.urlopen(asked).read()), 'token': token}), flush=True)
if len(sys.argv) > 1:
    import time
    time.sleep(1000)
"""
TCP = {"tcp": True, "interval_s": 1}


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    cluster = Cluster(CALM)
    try:
        cluster.start_hub()
        cluster.start_agent("w1", 4, "", "--service-slots", "8")
        cluster.start_agent("w2", 4)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def model(site: Cluster) -> str:
    return serve(site, "model", code=MODEL, health_check=TCP)


def why(site: Cluster, job_id: str) -> str:
    return str(site.call("GET", f"/jobs/{job_id}/why").json["summary"])


def use(site: Cluster, *words: str, **fields: Any) -> str:
    fields = {"uses": ["model"], "min_cpu_cores": 0, **fields}
    return site.submit(sys.executable, "-c", ASK, *words, **fields)


def ask(site: Cluster, token: str, path: str, method: str = "GET", body: Any = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=DEADLINE_S)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return Answer(answer.status, {}, answer.read())
    finally:
        connection.close()


def test_a_job_waits_for_its_service_reaches_it_and_is_told_when_it_stops(site: Cluster) -> None:
    first = use(site, uses=["early"])
    assert "waits for service early: none of" in why(site, first)
    assert "waits for service early" in site.dray("why", first).out
    service = serve(site, "early", code=MODEL, health_check=TCP)
    assert site.wait_state(first)["state"] == "succeeded"
    told = json.loads(site.logs(first))
    assert told["said"] == ["/predict?x=1", None], "its token is not the service's business"
    assert ask(site, told["token"], "/proxy/early/").status == 401, "a token ends with its job"
    # Nothing has room for it, so that it waits in line when the service goes.
    second = use(site, uses=["early"], min_cpu_cores=1e6)
    assert "waits for service" not in why(site, second)
    site.dray("service", "stop", "early")
    site.wait_state(service)
    wait_for(lambda: "waits for service early, which was stopped" in why(site, second), "it is told")
    site.call("POST", f"/jobs/{second}/cancel", {"grace_s": 0})


def test_the_token_of_a_task_opens_the_services_that_it_uses_and_nothing_else(
    site: Cluster, model: str
) -> None:
    serve(site, "other", code=MODEL, health_check=TCP)
    job_id = use(site, "stay")
    site.wait_running(job_id)
    (line,) = site.wait_logs(job_id, 1)
    token = json.loads(line)["token"]
    assert ask(site, token, "/proxy/model/").status == 200
    assert ask(site, token, "/api/v1/services/model/endpoints").status == 200
    assert ask(site, token, "/proxy/other/").status == 404
    assert ask(site, token, "/api/v1/services/other/endpoints").status == 404
    paths = [
        ("GET", f"/jobs/{job_id}"), ("GET", "/jobs"), ("GET", "/services"), ("GET", "/services/model"),
        ("POST", "/services/model/scale"), ("POST", "/services/model/stop"), ("POST", "/services/model/link"),
        ("POST", "/services/model/share"), ("POST", f"/jobs/{job_id}/cancel"), ("POST", "/jobs"), ("GET", "/workers"),
        ("GET", f"/jobs/{job_id}/logs"), ("GET", "/audit"), ("POST", "/tokens"), ("GET", "/policy"),
    ]  # fmt: skip
    for method, path in paths:
        body = {"command": ["true"], "replicas": 0, "add": ["*"]} if method == "POST" else None
        assert ask(site, token, f"/api/v1{path}", method, body).status == 403, path
    refused = site.dray("exec", job_id, "--", "id", env={"DRAY_TOKEN": token})
    assert refused.code == 125
    assert "needs the scope submit" in refused.err
    # Nor does the signature of one kind open what the other does.
    assert ask(site, token.replace("dray_use_", "dray_task_"), "/api/v1/jobs").status == 401
    assert ask(site, token[:-2] + "xx", "/proxy/model/").status == 401
    edited = site.call("PATCH", f"/jobs/{job_id}", {"uses": []})
    assert edited.status == 200, edited
    assert ask(site, token, "/proxy/model/").status == 404, "what it does not use any more"
    site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 0})
    site.wait_state(job_id)
    assert ask(site, token, "/proxy/model/").status == 401


def test_a_service_of_somebody_else_is_used_while_it_is_shared(site: Cluster, model: str) -> None:
    ben = make_token(site, "ben", "submit", "read")
    owner = site.call("GET", "/services/model").json["user"]
    name = f"model@{owner}"
    job_id = site.submit(sys.executable, "-c", ASK, token=ben, uses=[name], min_cpu_cores=0)
    assert "none that is shared with ben runs" in why(site, job_id)
    assert site.dray("service", "share", "model", "ben").code == 0
    assert site.wait_state(job_id)["state"] == "succeeded", site.logs(job_id)
    assert json.loads(site.logs(job_id))["said"][0] == "/predict?x=1"
    bare = site.submit(sys.executable, "-c", ASK, token=ben, uses=["model"], min_cpu_cores=0)
    assert "none of ben runs" in why(site, bare)
    site.call("POST", f"/jobs/{bare}/cancel", {"grace_s": 0})


def test_flags_and_files_say_so_too_and_bad_names_are_refused(site: Cluster, model: str) -> None:
    done = site.dray("run", "-c", "0", "--uses", "model", "--", "sh", "-c", "echo $DRAY_SERVICE_MODEL_URL")
    assert (done.code, done.out) == (0, f"{site.url}/proxy/model\n"), done.err
    (site.folder / "job.yaml").write_text(
        "command: [sh, -c, 'echo $DRAY_SERVICE_MODEL_URL']\nuses: model\ncpus: 0\n"
    )
    assert site.dray("run", "job.yaml").out == f"{site.url}/proxy/model\n"
    planned = site.dray("plan", "--uses", "nobody", "--", "true")
    assert "waits for service nobody" in planned.out
    for uses, said in (
        ("model", "must be a list"),
        (["a b"], "names no service"),
        (["../x"], "names no service"),
        (["web", "web@ben"], "both would be DRAY_SERVICE_WEB_URL"),
        (["web"] * 65, "the limit is 64"),
    ):
        answer = site.call("POST", "/jobs", {"command": ["true"], "uses": uses})
        assert (answer.status, said in str(answer.json)) == (400, True), answer
    own = site.call("POST", "/jobs", {"command": ["true"], "type": "service", "name": "a", "uses": ["a"]})
    assert "would wait for itself" in str(own.json)


def test_a_call_of_a_function_finds_its_service(site: Cluster, model: str) -> None:
    def call() -> tuple[str, str]:
        return os.environ["DRAY_SERVICE_MODEL_URL"], os.environ["DRAY_SERVICE_TOKEN"]

    with dray.connect(site.url, token=site.token) as hub:
        url, token = hub.submit(call, uses=["model"], cpus=0).result(60)
    assert url == f"{site.url}/proxy/model"
    assert token
