"""Every route of the OpenAPI document against a real hub with data in it: schemathesis, and streams with an end.

What is compared: status codes, content types and documents with what the description says of them; bad data must be
refused and never break anything. A stream never ends by itself, so that
those of events are asked by hand, with a clock.
"""

from __future__ import annotations

import collections
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from tools.fuzz_live import call, submit_jobs
from tools.fuzz_samples import TEXTS

from dray.hub.http.calls import ROUTES
from dray.testing import RunningHub, running_hub

ROOT = Path(__file__).resolve().parent.parent
ANSWER_S = 20.0
STREAM_S = 0.2
EVENT_STREAMS = tuple(route.path for route in ROUTES if route.media == "text/event-stream")
# These calls refuse what only shows when fields are read together, or against the job: no schema spells that.
JOINT = (
    "/api/v1/jobs",
    "/api/v1/jobs:batch",
    "/api/v1/plan",
    "/api/v1/jobs/{id}",
    "/api/v1/jobs/{id}/logs",
    "/api/v1/policy",
    # Which jobs are meant must be said in one way or another.
    "/api/v1/jobs:act",
    # A label can be taken back only where it was given; a drain's end must lie ahead.
    "/api/v1/workers/{id}",
    "/api/v1/workers/{id}/drain",
    # A moment is a date or how long ago, one of two lies before the other, and a cursor goes with its filters.
    "/api/v1/failures",
    "/api/v1/history",
    "/api/v1/jobs:counts",
    "/api/v1/timeline",
    "/api/v1/workers",
    # Jobs of a workload are specs, an empty change of one is none.
    "/api/v1/workloads",
    "/api/v1/workloads/{id}",
    "/api/v1/workloads/{id}/jobs",
    "/api/v1/workloads/{id}/attach",
    # Questions name workers that are there, and hold jobs and policies, which have rules of their own.
    "/api/v1/whatif",
    "/api/v1/sim",
    "/api/v1/capacity",
    # A snapshot is named by its content.
    "/api/v1/snapshots/{id}/check",
    # Of a worker's token the scope is said by its name; a template is read as a whole, and filled in by its own rules.
    "/api/v1/tokens",
    "/api/v1/templates",
    "/api/v1/templates/{name}/render",
)
CONFIG = "".join(
    f'[[operations]]\ninclude-path = "{path}"\nchecks.positive_data_acceptance.enabled = false\n'
    for path in JOINT
)


def fill_hub(hub: RunningHub, worker: Any) -> dict[str, list[str]]:
    """Jobs that wait, run and have ended, a worker that holds some of them, tokens that may go."""
    worker.register(labels={"role": "fuzz"})
    ids = submit_jobs(hub, 12)
    for place in range(6):
        worker.run_one("failed" if place % 2 else "succeeded")
    worker.ready()
    worker.accept(worker.assigned())
    call(hub, "POST", f"/jobs/{ids[-1]}/cancel", {})
    tokens = [call(hub, "POST", "/tokens", {"scopes": ["read"], "user": f"u{n}"})["id"] for n in range(20)]
    return {"jobs": ids, "workers": ["mock"], "queues": ["default"], "tokens": tokens}


class SchemaRun(NamedTuple):
    """How long (0: as long as the examples of each route take, whatever the machine), and from which seed."""

    max_time_s: int
    seed: int
    examples: int = 25
    phases: str = "examples,coverage,fuzzing,stateful"


def run_schemathesis(hub: RunningHub, known: dict[str, list[str]], asked: SchemaRun) -> dict[str, Any]:
    """One run over every route but the streams of events; gives what failed."""
    with tempfile.TemporaryDirectory(prefix="dray-fuzz-") as folder:
        Path(folder, "schemathesis.toml").write_text(CONFIG)
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "run", f"{hub.url}/openapi.json",
            "-H", f"Authorization: Bearer {hub.token}", "-n", str(asked.examples),
            "--phases", asked.phases, "--seed", str(asked.seed), "--request-timeout", "20", "--continue-on-failure",
            "--suppress-health-check", "all", "--no-shrink", "--warnings", "off",
            # Who knocks with a bad token at every route soon hears 429 alone: tests/hub/http/test_gate.py asks each.
            "--exclude-checks", "ignored_auth",
            "--generation-database", "none", "--no-color",
        ]  # fmt: skip
        for path in EVENT_STREAMS:
            command += ["--exclude-path", path]
        if asked.max_time_s:
            command += ["--max-time", str(asked.max_time_s)]
        began = time.perf_counter()
        done = subprocess.run(
            command,
            env=os.environ | _environment(known),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=asked.max_time_s + 300,
            check=False,
        )
    return _read_report(done.stdout + done.stderr, done.returncode, time.perf_counter() - began)


def ask_streams(hub: RunningHub, job_id: str, count: int, seed: int) -> dict[str, Any]:
    """Ask for events and followed logs with good and bad parameters; read each stream for a moment."""
    rng = random.Random(seed)
    statuses: collections.Counter[int] = collections.Counter()
    findings: dict[str, Any] = {}
    for _ in range(count):
        since = quote(rng.choice([*TEXTS, "0.0", "1.0", "999999999999999999.999999999"]), safe="")
        header = quote(rng.choice([*TEXTS, "1.0"]))[:200]
        choices: list[tuple[str, dict[str, str]]] = [
            ("/events", {}),
            (f"/events?since={since}", {}),
            ("/events", {"Last-Event-ID": header}),
            (f"/live?views={since}", {"Last-Event-ID": header}),
            (f"/jobs/{job_id}/logs?follow=1&task={since}", {}),
            (f"/jobs/{job_id}/logs?follow=1&task=0&skip={rng.choice((0, 1, 1 << 53))}", {}),
        ]
        path, headers = rng.choice(choices)
        status, media, body = _read_stream(hub, path, headers)
        statuses[status] += 1
        wanted = "application/json" if status >= 400 else "text/"
        if status not in (200, 400, 404) or not media.startswith(wanted):
            findings[f"GET {path[:120]}"] = {"fault": f"{status} {media}: {body[:200]!r}", "headers": headers}
    return {"calls": count, "statuses": dict(statuses), "findings": findings}


def run_http(max_time_s: int, seed: int) -> dict[str, Any]:
    """A hub with data, schemathesis on every route, the streams, and what the hub said meanwhile."""
    with running_hub() as hub, hub.worker() as worker:
        known = fill_hub(hub, worker)
        report = run_schemathesis(hub, known, SchemaRun(max_time_s, seed))
        streams = ask_streams(hub, known["jobs"][0], 200, seed)
        findings = {**report.pop("findings"), **streams.pop("findings")}
        doctor = call(hub, "GET", "/doctor")
        # That tokens were tried where they do not belong is what is done here, and told.
        wrong = [check for check in doctor["checks"] if not check["ok"] and "tokens" not in check["name"]]
        if wrong:
            findings["doctor"] = {"fault": str(wrong)}
        said = (hub.home / "hub.err").read_text(errors="replace")
        if "Traceback" in said:
            findings["log"] = {"fault": said[-3000:]}
    return {"schemathesis": report, "streams": streams, "findings": findings}


def _read_stream(hub: RunningHub, path: str, headers: dict[str, str]) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=ANSWER_S)
    body = b""
    try:
        connection.connect()
        socket = connection.sock
        connection.request(
            "GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {hub.token}", **headers}
        )
        answer = connection.getresponse()
        # An answer begins when the hub gets to it; only what follows may stay away.
        socket.settimeout(STREAM_S)
        try:
            body = answer.read1(65536)
        except TimeoutError:
            body = b""  # a stream with nothing to tell: it is open, and that is the answer
        return answer.status, answer.headers.get("Content-Type", ""), body
    finally:
        connection.close()


def _environment(known: dict[str, list[str]]) -> dict[str, str]:
    return {
        "DRAY_FUZZ_IDS": json.dumps(known),
        "SCHEMATHESIS_HOOKS": "tools.fuzz_hooks",
        "PYTHONPATH": str(ROOT),
        "NO_PROXY": "*",
    }


def _read_report(output: str, exit_code: int, wall_s: float) -> dict[str, Any]:
    """Sum up what schemathesis printed; a run that tested nothing is a finding too."""
    generated = re.search(r"(\d+) generated", output)
    tested = re.search(r"Selected: (\d+)/\d+\s+Tested: (\d+)", output)
    findings = {}
    if exit_code:
        begun = output.partition(" FAILURES ")[2] or output.partition(" ERRORS ")[2] or output
        findings["schemathesis"] = {
            "fault": re.sub(r"dray_\w+", "TOKEN", begun.partition(" SUMMARY ")[0])[:20000]
        }
    if not generated or not tested:
        findings["nothing tested"] = {"fault": output[-3000:]}
    return {
        "cases": int(generated.group(1)) if generated else 0,
        "selected": int(tested.group(1)) if tested else 0,
        "tested": int(tested.group(2)) if tested else 0,
        "checks": "all",
        "wall_s": round(wall_s, 1),
        "findings": findings,
    }
