"""What the hub counts: on a real hub whose work ends in every way, and against the page that names the numbers."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.hub.calls_desk import DEADLINE_S, client_of, lanes_of, new_job

from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.hub.answers.metrics import Gauges, Metrics
from dray.hub.engine.projection import Projector
from dray.hub.store.memory import MemoryStore
from dray.hub.store.writer import StoreWriter
from dray.testing import MockWorker, RunningHub, make_slots, make_spec, running_hub

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/metrics.md"
POLICY = {"queues": {"default": {"order": "priority"}}, "preemption": {"min_run_s": 0}}
ONE = make_slots(1)
Wait = Callable[..., object]
Numbers = dict[str, float]


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with running_hub() as running:
        assert ask(running, "PUT", "/api/v1/policy", POLICY)[0] == 200
        yield running


def ask(hub: RunningHub, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=DEADLINE_S)
    try:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {hub.token}", "Content-Type": "application/json"}
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def scrape(hub: RunningHub) -> str:
    status, body = ask(hub, "GET", "/metrics")
    assert status == 200
    return body.decode()


def read(hub: RunningHub) -> Numbers:
    """Every sample by its name and labels."""
    found = {}
    for family in text_string_to_metric_families(scrape(hub)):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def submit(hub: RunningHub, **fields: Any) -> str:
    status, body = ask(hub, "POST", "/api/v1/jobs", make_spec("true", **fields))
    assert status == 201, body
    return str(json.loads(body)["id"])


def grown(hub: RunningHub, before: Numbers, name: str) -> Numbers:
    """How much the samples of a name have grown, by their labels; those that have not are left out."""
    now = read(hub)
    there = {key: value - before.get(key, 0) for key, value in now.items() if key.partition("{")[0] == name}
    return {key[len(name) :]: value for key, value in there.items() if value}


def one_slot(hub: RunningHub, name: str) -> MockWorker:
    return hub.worker(name, slots=ONE)


def test_every_way_an_attempt_ends_is_counted_once(hub: RunningHub, wait_until: Wait) -> None:
    before = read(hub)

    def ends(*phases: str) -> None:
        """These, one each, and no others."""
        wanted = {f"{{phase={phase}}}": 1.0 for phase in phases}
        wait_until(lambda: grown(hub, before, "dray_attempts_total") == wanted, DEADLINE_S, str(wanted))

    with one_slot(hub, "ends") as worker:
        worker.register(journal_id="first")
        submit(hub)
        worker.run_one("succeeded")
        submit(hub)
        worker.run_one("failed")
        ends("succeeded", "failed")
        low = submit(hub, priority=1)
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        high = submit(hub, priority=5)
        assert worker.recv("job_cancel").payload["reason"] == "preempted"
        worker.result(task, "killed")
        # Its process was ended, and what it comes to is that it was preempted: once, and not as killed.
        ends("succeeded", "failed", "preempted")
        worker.ready()
        task = worker.assigned()
        assert task.task_id == high
        worker.accept(task)
        assert ask(hub, "POST", f"/api/v1/jobs/{high}/cancel")[0] < 300
        assert worker.recv("job_cancel").payload["reason"] == "user"
        worker.result(task, "killed")
        ends("succeeded", "failed", "preempted", "killed")
        worker.ready()
        task = worker.assigned()
        assert task.task_id == low
        worker.accept(task)
        worker.drop()
    with one_slot(hub, "ends") as worker:
        # Another journal: what ran there is lost with the earlier one.
        worker.register(journal_id="second")
        ends("succeeded", "failed", "preempted", "killed", "lost")
        worker.ready()
        assert worker.assigned().task_id == low
    # A goodbye before it was accepted: taken back.
    ends("succeeded", "failed", "preempted", "killed", "lost", "revoked")
    assert ask(hub, "POST", f"/api/v1/jobs/{low}/cancel")[0] < 300
    # Each accept of a worker that says no `job_started` is a start: five tasks, of which the lost one was never ended.
    assert grown(hub, before, "dray_start_wait_seconds_count") == {"": 5.0}


def test_what_can_be_read_off_is_as_it_is(hub: RunningHub, wait_until: Wait) -> None:
    before = read(hub)
    depth = "dray_queue_depth{queue=default}"
    jobs = [submit(hub, array={"first": 0, "last": 6}), submit(hub)]
    assert read(hub)[depth] - before[depth] == 8
    for job in jobs:
        assert ask(hub, "POST", f"/api/v1/jobs/{job}/cancel")[0] < 300
    assert read(hub)[depth] == before[depth]
    with one_slot(hub, "seen") as worker:
        worker.register()
        worker.ready()
        assert grown(hub, before, "dray_sessions") == {"": 1.0}
        assert grown(hub, before, "dray_workers")["{state=ready}"] == 1.0
        worker.send("ready_for_work", worker.script.ready(0, "polling") | {"not_ready": "its disk is full"})
        wait_until(lambda: grown(hub, before, "dray_workers").get("{state=not_ready}"), DEADLINE_S)
        # What a worker is told is what is scraped.
        worker.send("metrics_request", {})
        told = worker.recv("metrics_response").payload
        assert told["dray_sessions"] == read(hub)["dray_sessions"]
        assert {name.partition("{")[0] for name in told} <= {name.partition("{")[0] for name in read(hub)}
    wait_until(lambda: grown(hub, before, "dray_workers").get("{state=offline}"), DEADLINE_S)
    wait_until(lambda: read(hub)["dray_log_lag"] == 0, DEADLINE_S, "the rows have caught up")
    assert read(hub)["dray_reports"] == 0


def test_turns_and_requests_are_counted_as_they_come(hub: RunningHub) -> None:
    before = read(hub)
    for _ in range(3):
        submit(hub, hold=True)
    assert ask(hub, "GET", "/api/v1/jobs/nobody")[0] == 404
    requests = grown(hub, before, "dray_http_requests_total")
    assert requests["{route=submit_job,status=201}"] == 3
    assert requests["{route=show_job,status=404}"] == 1
    commits = grown(hub, before, "dray_commit_seconds_count")[""]
    # Three that waited for one another: a commit each. What is only read has a turn and commits nothing.
    assert commits >= 3
    assert grown(hub, before, "dray_plan_seconds_count")[""] >= commits
    assert grown(hub, before, "dray_turn_seconds_count")[""] > commits
    body = b"a large value" * 1000
    assert ask(hub, "PUT", f"/api/v1/blobs/{hashlib.sha256(body).hexdigest()}", body)[0] in (200, 201)
    assert grown(hub, before, "dray_blob_bytes_total") == {"": len(body)}


async def test_calls_are_counted_by_how_they_ended_for_good(hub: RunningHub) -> None:
    job, before = new_job(), await asyncio.to_thread(read, hub)
    async with client_of(hub) as client, lanes_of(hub, slots=1) as lanes:
        await client.add(job, [b"a", b"b", b"c"], close=True)
        # What comes back unbegun has not ended: it is given out again.
        for state in ("succeeded", "returned", "failed", "succeeded"):
            await lanes.take(1)
            lane, held = next(item for item in lanes.calls.items() if item[1])
            await lanes.worker.send("calls_result", lanes.frame(lane, list(held)[:1], state))
        assert len(await client.results(job, 3)) == 3
        wanted = {"{state=succeeded}": 2.0, "{state=failed}": 1.0}
        assert await asyncio.to_thread(grown, hub, before, "dray_calls_total") == wanted
    # A lane holds the place of calls and is no attempt of a task.
    assert await asyncio.to_thread(grown, hub, before, "dray_attempts_total") == {}


def test_counters_begin_anew_with_the_hub(wait_until: Wait) -> None:
    with running_hub() as own:
        with one_slot(own, "one") as worker:
            worker.register()
            submit(own)
            worker.run_one("failed")
            ended = "dray_attempts_total{phase=failed}"
            wait_until(lambda: read(own).get(ended) == 1, DEADLINE_S)
        # As a crash ends it: the log's last turns are folded in again, and ended before.
        own.kill()
        own.start()
        assert not read(own).get(ended)


def test_the_page_names_every_number_of_a_hub_and_no_other(hub: RunningHub) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.+?) \| (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    named = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows
    }
    assert named
    told = {}
    for family in text_string_to_metric_families(scrape(hub)):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.endswith("_created"):
            told[name] = family
    assert set(named) == set(told)
    for name, family in told.items():
        kind, labels, meaning = named[name]
        assert (kind, meaning) == (family.type, family.documentation)
        seen = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert not seen or seen == labels, name


class Slow(MemoryStore):
    """Rows that come when they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def project(self, projection: Any) -> None:
        assert self.gate.wait(DEADLINE_S)


async def test_the_lag_counts_turns_and_no_entities() -> None:
    store, state = Slow(), State()
    writer = StoreWriter(store)
    writer.start()
    projector = Projector(writer, 40)
    assert projector.lag(state, 41) == 0
    state.touched.workers |= dict.fromkeys(map(str, range(500)))
    assert projector.lag(state, 43) == 3
    await projector.project(state, 43, Clock(0, 0))
    state.touched.workers["another"] = None
    assert projector.lag(state, 44) == 4
    store.gate.set()
    await projector.flush(state, 44, Clock(0, 0))
    assert projector.lag(state, 44) == 0
    await writer.close()


def test_odd_names_stay_whole_in_the_text() -> None:
    metrics = Metrics(lambda: Gauges(queue_depth={'od"d\n': 1}))
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    assert [sample.labels for sample in families["dray_queue_depth"].samples] == [{"queue": 'od"d\n'}]


def test_the_snapshot_holds_plain_numbers_by_name() -> None:
    metrics = Metrics(lambda: Gauges(queue_depth={"q": 1}, attempts={"failed": 1}))
    metrics.observe_commit(0.25)
    found = metrics.snapshot()
    assert found['dray_queue_depth{queue="q"}'] == 1.0
    assert found['dray_attempts_total{phase="failed"}'] == 1.0
    assert (found["dray_commit_seconds_count"], found["dray_commit_seconds_sum"]) == (1.0, 0.25)
    assert all(type(value) is float for value in found.values())
    assert not [name for name in found if "_bucket" in name or "_created" in name]


def test_a_time_falls_into_its_bucket() -> None:
    metrics = Metrics(Gauges)
    metrics.observe_turn(0.003)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    buckets = {
        sample.labels["le"]: sample.value for sample in families["dray_turn_seconds"].samples if sample.labels
    }
    assert (buckets["0.002"], buckets["0.005"], buckets["+Inf"]) == (0, 1, 1)


def test_two_hubs_in_one_process_do_not_share() -> None:
    one, other = Metrics(Gauges), Metrics(Gauges)
    one.count_calls("failed", 1)
    assert 'dray_calls_total{state="failed"}' not in other.snapshot()


def test_cards_are_told_apart_and_by_type(hub: RunningHub, wait_until: Wait) -> None:
    capability = {"gpu_backend": "nvidia", "gpu_count": 2, "gpu_type": "A100", "vram_gb": 160, "cpu_count": 8}
    with hub.worker("carded", capability=capability) as worker:
        worker.register()
        submit(hub, gpu_count=1)
        worker.ready()
        task = worker.assigned()
        worker.accept(task)
        (card,) = task.devices
        numbers = read(hub)
        assert numbers[f"dray_gpu_held_ratio{{gpu={card},worker=carded}}"] == 1
        assert numbers[f"dray_gpu_held_ratio{{gpu={1 - card},worker=carded}}"] == 0
        assert (numbers["dray_gpus{state=held,type=A100}"], numbers["dray_gpus{state=free,type=A100}"]) == (
            1,
            1,
        )
        busy = [name for name in numbers if name.startswith("dray_gpu_used_ratio")]
        assert busy == [], "nobody has looked at it yet"
        looked = {"index": card, "share": 0.25, "memory_bytes": 1, "idle_s": 0}
        worker.heartbeat(usage={"attempts": {task.attempt: {"gpu_seen_s": 1, "cards": [looked]}}})
        wait_until(lambda: f"dray_gpu_used_ratio{{gpu={card},worker=carded}}" in read(hub))
        assert read(hub)[f"dray_gpu_used_ratio{{gpu={card},worker=carded}}"] == 0.25
        worker.result(task)
