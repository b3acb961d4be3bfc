"""The three questions: who may ask, what is answered, and that what a worker said of itself comes back unchanged."""

from __future__ import annotations

import contextlib
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

LINE = {
    "id",
    "backend",
    "gpu_count",
    "vram_gb",
    "cpu_count",
    "status",
    "active_jobs",
    "total_slots",
    "last_heartbeat",
}


def ask(peer: Any, kind: str, payload: dict[str, Any] | None = None) -> Any:
    peer.send(f"{kind}_request", payload)
    return peer.expect(f"{kind}_response")


def test_a_reader_need_not_register(lab) -> None:
    worker = lab.worker(gpu_count=2, vram_gb=47.5, cpu_count=6)
    reader = lab.worker(register=False, token=lab.token("read"))
    lines = {line["id"]: line for line in ask(reader, "worker_list")["workers"]}
    line = lines[worker.id]
    assert set(line) == LINE
    assert line["status"] in ("ready", "busy")
    reported = (line["backend"], line["gpu_count"], line["vram_gb"], line["cpu_count"])
    assert reported == ("nvidia", 2, 47.5, 6)
    assert line["last_heartbeat"].endswith("Z")
    assert isinstance(ask(reader, "metrics"), dict)


def test_a_reader_may_not_register(lab) -> None:
    reader = lab.worker(register=False, token=lab.token("read"))
    reader.send("register", {"id": reader.id, "capabilities": reader.capabilities})
    assert "'worker'" in reader.expect("error")["error"]


def test_a_worker_token_alone_may_not_ask(lab) -> None:
    worker = lab.worker(token=lab.token("worker"))
    for kind in ("worker_list", "metrics"):
        worker.send(f"{kind}_request")
        assert "'read'" in worker.expect("error")["error"]
    assert lab.takes(worker)


def test_a_registered_worker_with_both_scopes_may_ask(lab) -> None:
    worker = lab.worker(token=lab.token("worker", "read"))
    assert worker.id in [line["id"] for line in ask(worker, "worker_list")["workers"]]


def test_the_list_by_backend(lab) -> None:
    cards, none = lab.worker(gpu_count=1), lab.worker()
    nvidia = {line["id"] for line in ask(none, "worker_list", {"backend": "nvidia"})["workers"]}
    assert cards.id in nvidia
    assert none.id not in nvidia
    assert ask(none, "worker_list", {"backend": "metal"})["workers"] == []


def test_show_one_worker_and_what_it_runs(lab) -> None:
    worker = lab.worker()
    worker.ready()
    job_id = lab.offers(worker, name="shown")["spec"]["id"]
    worker.accept(job_id)
    shown = ask(worker, "worker_show", {"worker_id": worker.id})
    assert set(shown["worker"]) == LINE
    assert shown["worker"]["active_jobs"] == 1
    assert [(job["task_id"], job["job_name"]) for job in shown["jobs"]] == [(job_id, "shown")]
    assert shown["jobs"][0]["started_at"].endswith("Z")
    worker.finish(job_id)
    assert ask(worker, "worker_show", {"worker_id": worker.id})["jobs"] == []


def test_showing_a_worker_that_is_not_there(lab) -> None:
    worker = lab.worker()
    worker.send("worker_show_request", {"worker_id": "nobody"})
    assert "nobody" in worker.expect("error")["error"]


def test_status_follows_slots_and_session(lab) -> None:
    one = {"batch_total": 1, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
    worker, watcher = lab.worker(slots=one), lab.worker()

    def status() -> tuple[str, int, int]:
        line = ask(watcher, "worker_show", {"worker_id": worker.id})["worker"]
        return line["status"], line["active_jobs"], line["total_slots"]

    worker.ready()
    assert status() == ("ready", 0, 1)
    lab.offers(worker)
    assert status() == ("busy", 1, 1)
    worker.goodbye()
    lab.until(lambda: status()[0] == "offline")


def test_capabilities_come_back_unchanged_over_http(lab) -> None:
    worker = lab.worker(
        gpu_count=3, gpu_type="Q9", vram_gb=0.1, cpu_count=2.5, memory_gb=7.7, hostname="höst"
    )
    _, shown = lab.hub.ask("GET", f"/api/v1/workers/{worker.id}")
    said = {key: worker.capabilities[key] for key in ("gpu_count", "gpu_type", "vram_gb", "cpu_count")}
    assert {key: shown[key] for key in said} == said
    assert (shown["memory_gb"], shown["hostname"], shown["backend"]) == (7.7, "höst", "nvidia")


def test_questions_are_a_sign_of_life(own_lab) -> None:
    lab = own_lab(suspect_s="0.6", unknown_s="1.2", lost_s="100")
    asking, silent = lab.worker(), lab.worker()
    watcher = lab.worker()

    def status(worker: Any) -> str:
        ask(asking, "metrics")
        return str(ask(watcher, "worker_show", {"worker_id": worker.id})["worker"]["status"])

    lab.until(lambda: status(silent) == "offline")
    assert status(asking) == "ready"


def test_answers_come_in_the_order_of_the_questions(lab) -> None:
    headers = {"Authorization": f"Bearer {lab.hub.token}"}
    with connect(lab.hub.ws, additional_headers=headers, proxy=None) as socket:
        for _ in range(20):
            socket.send('{"type": "worker_list_request"}')
        for _ in range(20):
            assert '"worker_list_response"' in str(socket.recv(timeout=60))


def test_a_peer_that_asks_and_never_reads_is_closed_and_costs_nobody_else_anything(lab) -> None:
    deaf, other = lab.worker(register=False), lab.worker()
    for _ in range(40):
        lab.worker()  # long answers fill the buffers of the network sooner
    with contextlib.suppress(ConnectionClosed):
        for number in range(4_000):
            deaf.send("worker_list_request")
            if number % 20 == 0:
                ask(other, "metrics")  # by now the hub has read what was sent before
    code, reason = deaf.closed(timeout_s=30)
    assert code == 1013
    assert "does not read" in reason
    assert lab.takes(other)
