"""The worker printed in the reference works: its text is taken from the page and run against a real hub."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
CALLS = ("calls_assign", "calls_ack", "job_resume")
OTHERS = ("metrics_response", "worker_list_response", "worker_show_response", "prewarm_hint", "error")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def running(own_lab, tmp_path: Path) -> Iterator[Any]:
    """A lab in which the page's worker runs."""
    lab = own_lab()
    [code] = blocks("python")
    script = tmp_path / "worker.py"
    script.write_text(code)
    command = [sys.executable, str(script), lab.hub.ws, lab.hub.token, "printed"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield lab
    process.kill()
    process.wait()


def ended(lab: Any, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = lab.until(lambda: (job := lab.job(job_id))["ended_at"] and job, timeout_s=60)
    return job


def test_the_printed_worker_runs_fails_and_stops_jobs(running) -> None:
    lab = running
    good, bad = (
        lab.submit(command=["sh", "-c", 'test "$A" = 1'], env={"A": "1"}),
        lab.submit(command=["false"]),
    )
    missing, endless = lab.submit(command=["/no/such/program"]), lab.submit(command=["sleep", "60"])
    assert (ended(lab, good)["state"], ended(lab, good)["exit_code"]) == ("succeeded", 0)
    assert (ended(lab, bad)["state"], ended(lab, bad)["exit_code"]) == ("failed", 1)
    assert (ended(lab, missing)["state"], ended(lab, missing)["exit_code"]) == ("failed", 127)
    lab.until(lambda: lab.job(endless)["state"] == "running")
    lab.cancel(endless, grace_s=1)
    assert ended(lab, endless)["state"] == "killed"
    lab.until(lambda: lab.hub.ask("GET", "/api/v1/workers/printed")[1]["active_jobs"] == 0)


def test_the_printed_worker_outlives_its_hub(running, tmp_path: Path) -> None:
    lab, mark, gate = running, tmp_path / "runs", tmp_path / "gate"
    wait = f"echo run >> {mark}; while [ ! -e {gate} ]; do sleep 0.05; done"
    job_id = lab.submit(command=["sh", "-c", wait])
    lab.until(lambda: lab.job(job_id)["state"] == "running")
    lab.hub.kill()
    gate.touch()
    lab.hub.start(lab.hub.port)
    job = ended(lab, job_id)
    assert (job["state"], job["attempt_count"]) == ("succeeded", 1)
    assert mark.read_text() == "run\n"


def test_every_example_of_the_page_is_a_message(lab) -> None:
    """Examples of workers' messages are understood by a hub: none of them is malformed."""
    worker = lab.worker()
    count = 0
    for block in blocks("json"):
        decoder, place = json.JSONDecoder(), 0
        while block[place:].strip():
            place += len(block[place:]) - len(block[place:].lstrip())
            envelope, place = decoder.raw_decode(block, place)
            if envelope["type"] in (
                "ack",
                "job_assign",
                "job_go",
                "no_work",
                "job_cancel",
                "tunnel_dial",
                *CALLS,
                *OTHERS,
            ):
                continue
            text = json.dumps(envelope).replace('"gpu-7"', json.dumps(worker.id))
            worker.socket.send(text)
            answer = worker.receive()
            assert "$" not in answer.get("error", ""), answer
            assert "unknown message type" not in answer.get("error", ""), answer
            count += 1
    assert count >= 9
