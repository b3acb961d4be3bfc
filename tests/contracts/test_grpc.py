"""gRPC and HTTP are two spellings of one thing: every method answers what the same call answers over HTTP."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import status_pb2
from tests.contracts.conftest import HubProcess, Lab
from tests.contracts.grpc_peer import Peer, request_of, spell_status

from dray.hub.grpc.methods import SERVICES
from dray.hub.grpc.serving import KNOWN
from dray.hub.grpc.spelling import to_document, to_struct
from dray.hub.grpc.streams import StreamMethod

METHODS = {name: one for service in SERVICES.values() for name, one in service.methods_by_name.items()}
# What says again what was asked, and where a page's token stands for it.
ECHOES = {"action", "dry_run", "next_cursor", "next"}
# What goes on between two calls.
MOVING = frozenset(
    "oldest_wait_s age_s last_heartbeat tokens submitted_at at uid assigned_at accepted_at started_at ended_at fence"
    " registered_at created_at etag starts_per_min_5m starts_per_min_1h ends_per_min_5m ends_per_min_1h wait_p50_s"
    " wait_p90_s estimate known reports waits ends_p50 ends_p90".split()
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    made = HubProcess(tmp_path_factory.mktemp("hub"), {"grpc_port": "0"})
    yield made
    made.close()


@pytest.fixture(scope="module")
def peer(hub: HubProcess) -> Iterator[Peer]:
    made = Peer(hub.home, hub.token)
    yield made
    made.close()


class Twin(NamedTuple):
    """The same question twice, about twins: what a request holds, and what the same is over HTTP. `N` stands for the
    twin's own name; `under` is the part of the response that HTTP has for a whole answer.
    """

    request: dict[str, Any]
    http: tuple[str, str, Any]
    under: str = ""


SPEC: dict[str, Any] = {
    "name": "twin",
    "command": ["python", "train.py"],
    "env": {"A": "1"},
    "labels": {"team": "vision"},
    "cpu_milli": 1500,
    "memory_bytes": 1 << 33,
    "max_runtime_s": 90.5,
    "retries": 0,
    "losses": 0,
    "priority": 7,
    "array": {"first": 0, "last": 3, "limit": 2},
    "variants": [{"name": "a", "gpu_count": 1, "gpu_type": "A100"}, {"name": "b", "cpu_milli": 4000}],
    "after": [],
    "metadata": {"note": [1, 2.5, None, True, {"deep": "x"}]},
}
GRPC_SPEC: dict[str, Any] = {**SPEC, "metadata": to_struct(SPEC["metadata"])}
PAIR = [{"id": f"N-{number}", "command": ["true"]} for number in (1, 2)]
TERMS: dict[str, Any] = {"title": "a sweep", "width": 4, "labels": {"a": "b"}, "budget": {"gpu_hours": 9.5}}
RULES = {"retries": {"code": 1, "oom": "bigger"}}
# Each finds the job `N` there, waiting, an array of four, and the worker `w`, which runs `ran` no more.
TWINS: dict[str, list[Twin]] = {
    "SubmitJob": [
        Twin({"job": {**GRPC_SPEC, "id": "N-new"}}, ("POST", "/jobs", {**SPEC, "id": "N-new"}), "job"),
        Twin({"job": {"id": "N-rules", "command": ["true"], "retry_rules": {"code": 1, "oom": "bigger"}}},
             ("POST", "/jobs", {"id": "N-rules", "command": ["true"], **RULES}), "job"),
    ],
    "SubmitJobs": [Twin({"jobs": PAIR}, ("POST", "/jobs:batch", PAIR), "jobs")],
    "GetJob": [Twin({"job": "N"}, ("GET", "/jobs/N", None), "job"),
               Twin({"job": "ran"}, ("GET", "/jobs/ran", None), "job")],
    "ListJobs": [Twin({"filter": {"name": "ran", "labels": {"which": "only"}}, "page_size": 3},
                      ("GET", "/jobs?name=ran&label=which%3Donly&limit=3", None)),
                 Twin({"filter": {"states": ["JOB_STATE_SUCCEEDED"], "queue": "default", "user": "USER"}},
                      ("GET", "/jobs?state=succeeded&queue=default&user=USER", None))],
    "WaitJob": [Twin({"job": "ran", "wait_s": 5}, ("GET", "/jobs/ran?wait_s=5", None), "job")],
    "UpdateJob": [Twin({"job": "N", "changes": {"priority": 3, "labels": {"a": "b"}}},
                       ("PATCH", "/jobs/N", {"priority": 3, "labels": {"a": "b"}}), "job"),
                  Twin({"job": "N", "changes": {"name": "other"}, "update_mask": {"paths": ["name", "env"]}},
                       ("PATCH", "/jobs/N", {"name": "other", "env": None}), "job")],
    "CancelJobs": [Twin({"jobs": ["N", "nope"]}, ("POST", "/jobs:act", {"action": "cancel", "ids": ["N", "nope"]})),
                   Twin({"filter": {"name": "tw*", "states": ["JOB_STATE_PENDING"]}, "validate_only": True},
                        ("POST", "/jobs:act",
                         {"action": "cancel", "name": "tw*", "states": ["pending"], "dry_run": True}))],
    "HoldJob": [Twin({"job": "N"}, ("POST", "/jobs/N/hold", None), "job")],
    "ReleaseJob": [Twin({"job": "N"}, ("POST", "/jobs/N/release", None), "job")],
    "RequeueJob": [Twin({"job": "N"}, ("POST", "/jobs/N/requeue", None), "job")],
    "RerunJob": [Twin({"job": "N", "changes": {"id": "N-again", "priority": 2}},
                      ("POST", "/jobs/N/rerun", {"changes": {"id": "N-again", "priority": 2}}), "job")],
    "CountJobs": [Twin({"by": ["state", "name"], "filter": {"name": "ran", "states": ["JOB_STATE_SUCCEEDED"]}},
                       ("GET", "/jobs:group?by=state,name&name=ran&state=succeeded", None)),
                  Twin({}, ("GET", "/jobs:group", None))],
    "GetTask": [Twin({"task": "N/2"}, ("GET", "/jobs/N/task?task=2", None), "task"),
                Twin({"task": "ran"}, ("GET", "/jobs/ran/task", None), "task")],
    "ListTasks": [Twin({"job": "N", "states": ["JOB_STATE_PENDING"], "page_size": 10},
                       ("GET", "/jobs/N/tasks?state=pending&limit=10", None)),
                  Twin({"job": "ran"}, ("GET", "/jobs/ran/tasks", None))],
    "CancelTask": [Twin({"task": "N/2", "grace_s": 3}, ("POST", "/jobs/N/cancel", {"task": 2, "grace_s": 3}), "job")],
    "RequeueTask": [Twin({"task": "N/1"}, ("POST", "/jobs/N/requeue", {"task": 1}), "job")],
    "ExplainJob": [Twin({"job": "N"}, ("GET", "/jobs/N/why", None), "reason"),
                   Twin({"job": "N", "no_fix": True}, ("GET", "/jobs/N/why?fix=0", None), "reason")],
    "PlanJob": [Twin({"job": {"command": ["true"], "gpu_count": 64}},
                     ("POST", "/plan", {"command": ["true"], "gpu_count": 64}), "plan"),
                Twin({"job": {"command": ["true"], "cpu_milli": 1000}},
                     ("POST", "/plan", {"command": ["true"], "cpu_milli": 1000}), "plan")],
    "ListJobEvents": [Twin({"job": "ran"}, ("GET", "/jobs/ran/events", None))],
    "GetEstimateRecord": [Twin({}, ("GET", "/estimates", None), "record")],
    "ListQueues": [Twin({}, ("GET", "/queues", None))],
    "GetQueue": [Twin({"queue": "default", "limit": 5}, ("GET", "/queues/default?limit=5", None), "queue")],
    "ListLimits": [Twin({}, ("GET", "/limits", None))],
    "GetPolicy": [Twin({}, ("GET", "/policy", None), "policy")],
    "ApplyPolicy": [Twin({"policy": to_struct({"quotas": [{"user": "ana", "gpus": 4}]}), "validate_only": True},
                         ("PUT", "/policy?dry_run=1", {"quotas": [{"user": "ana", "gpus": 4}]}), "policy")],
    "ListPreemptions": [Twin({"user": "ana", "window_s": 60}, ("GET", "/preemptions?user=ana&window_s=60", None))],
    "ListWorkers": [Twin({"backend": "nvidia", "all": True, "labels": {"site": "lab"}},
                         ("GET", "/workers?backend=nvidia&all=1&label=site%3Dlab", None))],
    "GetWorker": [Twin({"worker": "w"}, ("GET", "/workers/w", None), "worker")],
    "DrainWorker": [Twin({"worker": "w", "reason": "fan"}, ("POST", "/workers/w/drain", {"reason": "fan"}), "worker")],
    "ResumeWorker": [Twin({"worker": "w"}, ("POST", "/workers/w/resume", None), "worker")],
    "GetHub": [Twin({}, ("GET", "/hub", None), "hub")],
    "CreateWorkload": [Twin({"id": "N-w", "terms": TERMS, "jobs": PAIR},
                            ("POST", "/workloads", {"id": "N-w", **TERMS, "jobs": PAIR}), "workload"),
                       Twin({"id": "N-dry", "validate_only": True}, ("POST", "/workloads?dry_run=1", {"id": "N-dry"}),
                            "workload")],
    "GetWorkload": [Twin({"workload": "N"}, ("GET", "/workloads/N", None), "workload")],
    "ListWorkloads": [Twin({"labels": {"which": "N"}, "states": ["draft"], "page_size": 3},
                           ("GET", "/workloads?label=which%3DN&state=draft&limit=3", None))],
    "UpdateWorkload": [Twin({"workload": "N", "changes": {"width": 3, "title": "t"}},
                            ("PATCH", "/workloads/N", {"width": 3, "title": "t"}), "workload")],
    "StartWorkload": [Twin({"workload": "N"}, ("POST", "/workloads/N/start", None), "workload")],
    "PauseWorkload": [Twin({"workload": "N", "stop": True}, ("POST", "/workloads/N/pause", {"stop": True}),
                           "workload")],
    "ScaleWorkload": [Twin({"workload": "N", "width": 5}, ("POST", "/workloads/N/scale", {"width": 5}), "workload")],
    "SetDistribution": [Twin({"workload": "N", "distribution": {"mode": "spread", "by": "rack"}},
                             ("POST", "/workloads/N/spread", {"mode": "spread", "by": "rack"}), "workload")],
    "SealWorkload": [Twin({"workload": "N"}, ("POST", "/workloads/N/seal", None), "workload")],
    "CancelWorkload": [Twin({"workload": "N", "grace_s": 3}, ("POST", "/workloads/N/cancel", {"grace_s": 3}),
                            "workload")],
    "ArchiveWorkload": [Twin({"workload": "N"}, ("POST", "/workloads/N/archive", None), "workload")],
    "WaitWorkload": [Twin({"workload": "N", "wait_s": 0.1}, ("GET", "/workloads/N?wait_s=0.1", None), "workload")],
    "AddTasks": [Twin({"workload": "N", "jobs": PAIR, "seal": True}, ("POST", "/workloads/N/jobs?seal=1", PAIR))],
    "AttachJobs": [Twin({"workload": "N", "attach": ["ran"]}, ("POST", "/workloads/N/attach", {"attach": ["ran"]}),
                        "workload")],
    "DeleteWorkload": [Twin({"workload": "N"}, ("DELETE", "/workloads/N", None))],
    "RetryTasks": [Twin({"workload": "N"}, ("POST", "/workloads/N/retry", None))],
    "ListWorkloadTasks": [Twin({"workload": "N", "states": ["JOB_STATE_PENDING"], "page_size": 3},
                               ("GET", "/workloads/N/tasks?state=pending&limit=3", None)),
                          Twin({"workload": "done"}, ("GET", "/workloads/done/tasks", None))],
    "ListResults": [Twin({"workload": "N"}, ("GET", "/workloads/N/results", None)),
                    Twin({"workload": "done", "limit": 1}, ("GET", "/workloads/done/results?limit=1", None))],
    "ExplainWorkload": [Twin({"workload": "N"}, ("GET", "/workloads/N/why", None), "why"),
                        Twin({"workload": "waits"}, ("GET", "/workloads/waits/why", None), "why")],
    "ForecastWorkload": [Twin({"workload": "N"}, ("GET", "/workloads/N/forecast", None), "forecast"),
                         Twin({"workload": "waits"}, ("GET", "/workloads/waits/forecast", None), "forecast")],
    "GetWorkloadHealth": [Twin({"workload": "N"}, ("GET", "/workloads/N/health", None), "health")],
    "GetDistribution": [Twin({"workload": "waits", "by": "site"},
                             ("GET", "/workloads/waits/distribution?by=site", None), "distribution")],
    "RankProviders": [Twin({"job": {"command": ["true"], "cpu_milli": 1000}},
                           ("POST", "/providers/rank", {"command": ["true"], "cpu_milli": 1000}))],
    "ListUsage": [Twin({"by": "queue", "window_s": 60}, ("GET", "/usage?by=queue&window_s=60", None), "report")],
    "ListProviders": [Twin({}, ("GET", "/providers", None))],
    "GetProvider": [Twin({"provider": "lab"}, ("GET", "/provider?name=lab", None), "provider")],
}  # fmt: skip
# Whose answers are proven by tests of their own.
APART = {"GetTaskResult", "GetPreemption"}
# Of programs that run tasks, which HTTP has no call for: `test_grpc_executors.py`.
APART |= {"RegisterWorker", "DequeueTasks", "RenewLeases", "CompleteTasks", "ReturnTasks"}
APART |= {name for name, known in KNOWN.items() if isinstance(known.row, StreamMethod)}


@pytest.fixture(scope="module")
def site(hub: HubProcess) -> Iterator[Lab]:
    """A worker with a card, and a job that it has run."""
    lab = Lab(hub, "site")
    worker = lab.worker(worker_id="w", gpu_count=2, gpu_type="A100", vram_gb=160, register=False)
    worker.register()
    status, _ = hub.ask("PATCH", "/api/v1/workers/w", {"labels": {"site": "lab"}})
    assert status == 200
    status, said = hub.ask("PUT", "/api/v1/policy", {"providers": {"lab": {"price_per_hour": 2}}})
    assert status == 200, said
    worker.ready()
    offer = lab.offers(worker, id="ran", name="ran", labels={"which": "only"})
    assert offer is not None
    worker.accept("ran")
    worker.finish("ran")
    for name, spec in (("done", {}), ("waits", {"gpu_count": 9})):
        wanted = {"id": name, "start": True, "jobs": [{"id": f"{name}-1", "command": ["true"], **spec}]}
        assert hub.ask("POST", "/api/v1/workloads", wanted)[0] == 201
    assert worker.ready()["type"] == "job_assign"
    worker.accept("done-1")
    worker.finish("done-1")
    yield lab
    lab.clear()


def test_the_table_has_each_method_of_the_service_and_no_other() -> None:
    assert set(KNOWN) == set(METHODS)
    assert set(TWINS) | APART == set(KNOWN)
    for name, known in KNOWN.items():
        found = METHODS[name]
        assert found.server_streaming == isinstance(known.row, StreamMethod), name
        assert found.client_streaming == (isinstance(known.row, StreamMethod) and known.row.takes_many), name


def test_every_method_answers_what_http_does(hub: HubProcess, peer: Peer, site: Lab) -> None:
    user = hub.ask("GET", "/api/v1/jobs/ran")[1]["user"]
    names = (f"{letter}{number}" for number in itertools.count() for letter in "ab")
    for method, twin in ((method, twin) for method, twins in TWINS.items() for twin in twins):
        ours, theirs = next(names), next(names)
        if "/workloads" in twin.http[1]:
            for name in (ours, theirs):
                made = {"id": name, "labels": {"which": name}}
                hub.ask(
                    "POST",
                    "/api/v1/workloads",
                    made | {"seal": method in ("ArchiveWorkload", "DeleteWorkload")},
                )
                for verb in {"ArchiveWorkload": ["cancel"], "DeleteWorkload": ["cancel", "archive"]}.get(
                    method, []
                ):
                    hub.ask("POST", f"/api/v1/workloads/{name}/{verb}")
        elif "N" in str(twin.http):
            for name in (ours, theirs):
                array, held = {"first": 0, "last": 3}, method == "ReleaseJob"
                site.submit(id=name, name="twin", array=array, hold=held, gpu_count=9)
        fields = _named(twin.request, ours, user)
        response = whole(peer.ask(method, **fields))
        verb, path, body = _named(twin.http, theirs, user)
        status, said = hub.ask(verb, f"/api/v1{path}", body)
        assert status < 300, (method, said)
        answer = response[twin.under] if twin.under else response
        kind = KNOWN[method].kinds.response.DESCRIPTOR
        if twin.under:
            beside = [name for name in kind.fields_by_name if isinstance(said, dict) and name in said]
            kind = kind.fields_by_name[twin.under].message_type
            for name in (name for name in beside if name not in kind.fields_by_name):
                told = json.loads(re.sub(rf"\b{theirs}\b", ours, json.dumps(said.pop(name))))
                assert response[name] == told, (method, name)
        for one, other in zip(
            *([answer], [said]) if not isinstance(said, list) else (answer, said), strict=True
        ):
            same(kind, one, json.loads(re.sub(rf"\b{theirs}\b", ours, json.dumps(other))), method)
        for name in (ours, theirs):
            hub.ask("POST", f"/api/v1/jobs/{name}/cancel")


def _named(value: Any, name: str, user: str) -> Any:
    if isinstance(value, dict):
        return {key: _named(one, name, user) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_named(one, name, user) for one in value)
    if isinstance(value, str) and not value.startswith("JOB_STATE"):
        value = value.replace("%3DN", f"%3D{name}")
        marked = value.startswith(("N", "/jobs/N", "/workloads/N"))
        return value.replace("N", name, 1).replace("USER", user) if marked else value.replace("USER", user)
    return value


def whole(message: Any) -> dict[str, Any]:
    """A message as a document with all its fields."""
    return _fill(message.DESCRIPTOR, to_document(message))


def _fill(kind: Any, document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in kind.fields:
        value = document.get(field.name)
        if value is None and field.is_repeated:
            value = {} if _is_map(field) else []
        elif value is None and not field.has_presence:
            value = "unspecified" if field.enum_type is not None else field.default_value
        elif _is_own(field) and isinstance(value, list):
            value = [_fill(field.message_type, one) for one in value]
        elif _is_own(field) and isinstance(value, dict):
            value = _fill(field.message_type, value)
        found[field.name] = value
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_own(field: FieldDescriptor) -> bool:
    return (
        field.message_type is not None
        and field.message_type.full_name.startswith("dray.")
        and not _is_map(field)
    )


def same(kind: Any, ours: Any, http: Any, where: str) -> None:
    """Hold an answer against that of HTTP: every key has its field, and says the same."""
    assert isinstance(http, dict), (where, http)
    for key, value in http.items():
        if key in ECHOES or key in MOVING:
            continue
        missing = f"{where}: HTTP says {key}={value!r}: add it to {kind.name} in src/dray/v1, then ./dev fix"
        assert key in kind.fields_by_name, missing
        field, place = kind.fields_by_name[key], f"{where}.{key}"
        if value is None:
            assert ours[key] in (None, "", 0, [], {}), (place, ours[key])
        elif _is_own(field) and field.is_repeated:
            assert len(ours[key]) == len(value), (place, ours[key], value)
            for one, other in zip(ours[key], value, strict=True):
                same(field.message_type, one, other, place)
        elif _is_own(field):
            same(field.message_type, ours[key], value, place)
        else:
            assert ours[key] == value, (place, ours[key], value)


def test_refusals_say_what_is_wrong_and_what_to_do(hub: HubProcess, peer: Peer, site: Lab) -> None:
    site.submit(id="there")
    for method, fields, code, reason in (
        ("GetJob", {"job": "nope"}, "NOT_FOUND", "NOT_FOUND"),
        ("GetJob", {"job": "../x"}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("SubmitJob", {"job": {"id": "there", "command": ["false"]}}, "ALREADY_EXISTS", "KEY_REUSED"),
        ("SubmitJob", {}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("SubmitJob", {"job": {"command": ["true"]}, "request_id": "ü"}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("CancelJobs", {}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("RequeueTask", {"task": "ran/0/1"}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("UpdateJob", {"job": "ran", "changes": {"priority": 1}}, "FAILED_PRECONDITION", "CONFLICT"),
        ("UpdateJob", {"job": "there", "update_mask": {"paths": ["nmae"]}}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("ApplyPolicy", {"etag": "0123", "policy": {}}, "ABORTED", "STALE"),
        ("WaitJob", {"job": "there", "wait_s": float("nan")}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("ListJobs", {"page_size": -1}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("ListJobs", {"filter": {"states": [99]}}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("WatchJobs", {"jobs": []}, "INVALID_ARGUMENT", "INVALID_INPUT"),
        ("ReadLogs", {"task": "nope"}, "NOT_FOUND", "NOT_FOUND"),
        ("WatchEvents", {"after": "soon"}, "INVALID_ARGUMENT", "INVALID_INPUT"),
    ):  # fmt: skip
        said, words, details = peer.refused(method, **fields)
        assert (said.name, details["ErrorInfo"]) == (code, {"reason": reason, "domain": "dray"}), (
            method,
            words,
        )
        assert words, method
    _, _, details = peer.refused("SubmitJob", job={"id": "a b", "command": [], "retries": -1})
    faults = {one["field"] for one in details["BadRequest"]["field_violations"]}
    assert {"id", "retries"} <= faults
    assert peer.refused("GetJob", job="nope")[2]["ResourceInfo"]["resource_name"] == "jobs/nope"


def test_tokens_and_scopes_are_those_of_http(hub: HubProcess, site: Lab) -> None:
    for scopes, allowed in ((("read",), False), (("submit",), True), (("worker",), False)):
        peer = Peer(hub.home, site.token(*scopes))
        request: dict[str, Any] = {"job": {"command": ["true"], "hold": True}}
        if allowed:
            assert peer.ask("SubmitJob", **request).created
        else:
            assert peer.refused("SubmitJob", **request)[0] is grpc.StatusCode.PERMISSION_DENIED
        assert peer.refused("ApplyPolicy", policy={})[0] is grpc.StatusCode.PERMISSION_DENIED
        peer.close()
    for token in ("", "dray_00000000_nope"):
        peer = Peer(hub.home, token)
        assert peer.refused("GetHub")[0] is grpc.StatusCode.UNAUTHENTICATED
        peer.close()


def test_a_request_sent_again_comes_to_the_same(hub: HubProcess, peer: Peer) -> None:
    request: dict[str, Any] = {"job": {"command": ["true"], "hold": True}, "request_id": "once"}
    first, again = peer.ask("SubmitJob", **request), peer.ask("SubmitJob", **request)
    assert (first.created, again.created, again.job.id) == (True, False, first.job.id)
    other = {"command": ["false"], "hold": True}
    assert peer.refused("SubmitJob", job=other, request_id="once")[0] is grpc.StatusCode.ALREADY_EXISTS


def test_pages_go_on_and_belong_to_their_filter(hub: HubProcess, peer: Peer, site: Lab) -> None:
    ids = [site.submit(name="paged", hold=True) for _ in range(5)]
    asked: dict[str, Any] = {"filter": {"name": "paged"}, "page_size": 2}
    seen: list[str] = []
    token = ""
    while True:
        page = peer.ask("ListJobs", page_token=token, **asked)
        seen += [job.id for job in page.jobs]
        if not (token := page.next_page_token):
            break
        other = peer.refused("ListJobs", filter={"name": "else"}, page_token=token)
        assert (other[0], other[2]["BadRequest"]["field_violations"][0]["field"]) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "page_token",
        )
    assert seen == ids[::-1]
    assert peer.refused("ListJobs", page_token="????")[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_what_cannot_be_read_is_refused_and_unknown_fields_where_they_would_matter(peer: Peer) -> None:
    submit: Any = peer.channel.unary_unary("/dray.v1.Scheduler/SubmitJob")
    read: Any = peer.channel.unary_unary("/dray.v1.Scheduler/GetHub")
    unknown = b"\xf8\x07\x01"  # field 127, a number
    spec = request_of("SubmitJob", job={"command": ["true"], "hold": True}).SerializeToString()
    for method, raw, code in (
        (submit, b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (submit, spec + unknown, grpc.StatusCode.INVALID_ARGUMENT),
        (submit, b"x" * (9 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            method(raw, metadata=peer.metadata, timeout=30)
        assert caught.value.code() is code
    assert read(unknown, metadata=peer.metadata, timeout=30)


def test_streams_tell_what_was_committed_and_end_with_their_jobs(
    hub: HubProcess, peer: Peer, site: Lab
) -> None:
    number = hub.ask("GET", "/api/v1/jobs/ran/events")[1]["events"]
    assert number
    feed = peer.ask("WatchEvents", after="1.0", types=["job_submitted", "job_ended"])
    first, second = site.submit(gpu_count=9), site.submit(gpu_count=9)
    watch = peer.ask("WatchJobs", jobs=[first, second, "nope"])
    begun = next(watch)
    assert ([row.id for row in begun.jobs], list(begun.missing)) == ([first, second], ["nope"])
    site.cancel(first)
    site.cancel(second)
    rows = [row for message in watch for row in message.jobs]
    assert {row.id: row.document.exit_class for row in rows if row.HasField("document")} == {
        first: "cancelled",
        second: "cancelled",
    }
    ended = set()
    for message in feed:
        ended |= {event.job_id for event in message.events if event.type == "job_ended"}
        if {first, second} <= ended:
            break
    feed.cancel()
    assert hub.ask("POST", "/api/v1/workloads/done/seal")[0] == 200
    told = list(peer.ask("StreamResults", workload="done"))
    assert [(line.job, line.task, line.exit_code) for one in told for line in one.results] == [
        ("done-1", "done-1", 0)
    ]
    assert told[-1].done
    rest = list(peer.ask("StreamResults", workload="done", after=told[-1].next))
    assert [(len(one.results), one.done) for one in rest] == [(0, True)]
    specs = [{"id": f"s{number}", "hold": True, "command": ["true"]} for number in range(9)]
    specs.append({"id": "no id"})
    requests = [request_of("SubmitStream", number=number, jobs=[spec]) for number, spec in enumerate(specs)]
    answers = {
        one.number: one for one in peer.stub.SubmitStream(iter(requests), metadata=peer.metadata, timeout=30)
    }
    assert [list(answers[n].ids) for n in range(9)] == [[f"s{n}"] for n in range(9)]
    refused = spell_status(status_pb2.Status.FromString(answers[9].status))
    assert refused["ErrorInfo"]["reason"] == "INVALID_SPEC"


def test_a_stream_ends_with_its_token_and_a_call_with_its_deadline(
    hub: HubProcess, peer: Peer, site: Lab
) -> None:
    job = site.submit(gpu_count=9)
    _, made = hub.ask("POST", "/api/v1/tokens", {"scopes": ["read"]})
    other = Peer(hub.home, made["token"])
    watch = other.ask("WatchJobs", jobs=[job])
    next(watch)
    hub.ask("DELETE", f"/api/v1/tokens/{made['id']}")
    with pytest.raises(grpc.RpcError) as caught:
        next(watch)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    other.close()
    # The hub answers just before its caller would give up.
    assert peer.ask("WaitJob", timeout_s=0.6, job=job, wait_s=60).job.state == 1


def test_a_deadline_that_passes_on_the_way_leaves_one_job_for_each_key(hub: HubProcess, peer: Peer) -> None:
    spec = {"name": "late", "command": ["true"], "hold": True}
    for number in range(24):
        # Which of them come too late, and where, is as it happens.
        with contextlib.suppress(grpc.RpcError):
            peer.ask("SubmitJob", timeout_s=0.0005 * number, job=spec, request_id=f"late-{number}")
    known = {peer.ask("SubmitJob", job=spec, request_id=f"late-{number}").job.id for number in range(24)}
    listed = peer.ask("ListJobs", filter={"name": "late"}, page_size=100).jobs
    assert (len(known), {job.id for job in listed}) == (24, known)


def test_streams_that_nobody_reads_or_that_are_given_up_hold_nobody_up(
    hub: HubProcess, peer: Peer, site: Lab
) -> None:
    job, opened = site.submit(gpu_count=9), 300
    # More than may be open at a time: each that is given up makes room for another.
    for _ in range(opened):
        watch = peer.ask("WatchJobs", jobs=[job])
        assert next(watch).jobs
        watch.cancel()
    token, alone = site.token("read"), [("grpc.use_local_subchannel_pool", 1)]
    idle = [Peer(hub.home, token, grpc.insecure_channel(peer.address, alone)) for _ in range(2)]
    unread = [idle[at % 2].ask("WatchEvents", timeout_s=None, after="1.0") for at in range(opened)]
    refused = site.until(lambda: [one for one in unread if not one.is_active()])
    assert {one.code() for one in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    burst = [{"name": "burst", "command": ["true"], "hold": True}] * 1000
    made = {one.id for one in peer.ask("SubmitJobs", jobs=burst).jobs}
    assert peer.ask("GetHub").hub
    # Who reads late is told all of it all the same.
    told: list[str] = []
    for message in next(one for one in unread if one.is_active()):
        told += [one.job_id for one in message.events if one.type == "job_submitted" and one.job_id in made]
        if len(told) >= len(made):
            break
    assert (len(told), set(told)) == (len(made), made)
    for one in idle:
        one.close()
    assert next(peer.ask("WatchJobs", jobs=[job])).jobs
    peer.ask("CancelJobs", filter={"name": "burst"})


def test_a_workload_that_somebody_else_changed_is_not_changed_by_an_old_etag(peer: Peer) -> None:
    shown = peer.ask("CreateWorkload", id="etags").workload
    peer.ask("UpdateWorkload", workload="etags", changes={"width": 3}, etag=shown.etag)
    said, _, details = peer.refused("UpdateWorkload", workload="etags", changes={"width": 9}, etag=shown.etag)
    assert (said.name, details["ErrorInfo"]["reason"]) == ("ABORTED", "STALE")
    assert peer.ask("GetWorkload", workload="etags").workload.width == 3
    refused = peer.refused("CreateWorkload", id="debts", terms={"budget": {"money": -1}})
    assert (refused[0].name, refused[2]["BadRequest"]["field_violations"][0]["field"]) == (
        "INVALID_ARGUMENT",
        "budget.money",
    )
