"""Alarms of a real hub: raised, told, kept over a restart, over; and the two thresholds by themselves."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.hub.asking import ask, wait_until

from dray.core.lifecycle.apply import apply
from dray.core.lifecycle.state.events import Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.policies.alarms import AlarmRule
from dray.core.model.policies.policy import Policy
from dray.core.model.records.records import Phase
from dray.hub.engine.engine import Engine
from dray.hub.notifications.alarms import Alarms
from dray.testing import MockWorker, RunningHub, make_spec, running_hub

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    # What is told between two tests finds nobody: who is told next must not wait for the next try of that.
    with running_hub(alarm_every_s=0.05, notify_retry_s="0.05") as running:
        yield running


@pytest.fixture
def told() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    got: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", got
    server.shutdown()
    server.server_close()
    thread.join()


def watch(hub: RunningHub, url: str, *alarms: dict[str, Any]) -> None:
    rules = [{"on": ["alarm", "cleared"], "to": ["ops"]}]
    body = {"alarms": list(alarms), "notifications": {"receivers": {"ops": {"webhook": url}}, "rules": rules}}
    status, answer = ask(hub, "PUT", "/policy", body)
    assert status == 200, answer


def raised(hub: RunningHub, token: str = "") -> list[tuple[str, str]]:
    status, answer = ask(hub, "GET", "/alarms", token=token)
    assert status == 200, answer
    return [(one["kind"], one["subject"]) for one in answer["alarms"]]


def test_a_worker_away_and_a_queue_that_waits(
    hub: RunningHub, told: tuple[str, list[dict[str, Any]]]
) -> None:
    url, got = told
    watch(hub, url, {"kind": "worker_away", "above": 0.2}, {"kind": "queue_wait", "above": 0.2})
    worker = hub.worker("w1")
    worker.open()
    worker.register()
    assert ("worker_away", "w1") not in raised(hub)
    worker.close()
    assert ask(hub, "POST", "/jobs", make_spec(id="stuck"))[0] == 201
    both = [("queue_wait", "default"), ("worker_away", "w1")]
    wait_until(lambda: sorted(raised(hub)) == both, WITHIN_S)
    assert 'dray_alarms{kind="worker_away"} 1.0' in ask(hub, "GET", "/metrics")[1]
    wait_until(lambda: len(distinct(got)) == 2, WITHIN_S)
    hub.kill()
    hub.start()
    assert sorted(raised(hub)) == both
    with hub.worker("w1") as worker:
        worker.register()
        worker.run_one()
        wait_until(lambda: raised(hub) == [], WITHIN_S)
        wait_until(lambda: len(distinct(got)) == 4, WITHIN_S)
    # Once each, also over the restart; one that was sent and not yet struck off comes again under its own id.
    events = sorted((one["event"], one["alarm"]["kind"]) for one in distinct(got))
    assert events == [
        ("alarm", "queue_wait"),
        ("alarm", "worker_away"),
        ("cleared", "queue_wait"),
        ("cleared", "worker_away"),
    ]


def test_a_quarantine_is_told_with_its_reason(
    hub: RunningHub, told: tuple[str, list[dict[str, Any]]]
) -> None:
    url, got = told
    watch(hub, url)
    for number in range(3):
        assert ask(hub, "POST", "/jobs", make_spec(id=f"eaten-{number}"))[0] == 201
    with hub.worker("ill") as worker:
        worker.register()
        for _ in range(3):
            worker.run_one("failed", 30, exit_code=1, error="No space left on device")
        # What earlier tests left untold comes here, too.
        (one,) = wait_until(
            lambda: [one for one in distinct(got) if one["alarm"]["kind"] == "quarantine"], WITHIN_S
        )
        assert (one["event"], one["alarm"]["kind"], one["alarm"]["subject"]) == ("alarm", "quarantine", "ill")
        assert "worker ill is in quarantine: 3 different jobs failed there" in one["text"]
        assert "No space left on device" in one["text"]
        assert 'dray_workers{state="quarantined"} 1.0' in ask(hub, "GET", "/metrics")[1]


def distinct(got: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({one["id"]: one for one in got}.values())


def test_what_is_about_a_job_is_for_its_owner(
    hub: RunningHub, told: tuple[str, list[dict[str, Any]]]
) -> None:
    url, got = told
    watch(hub, url, {"kind": "crash_loop", "above": 1}, {"kind": "failed_share", "above": 0.5, "least": 2})
    ana, ben = hub.make_token("ana"), hub.make_token("ben")
    assert ask(hub, "POST", "/jobs", make_spec(id="loop", retries=5), token=ana)[0] == 201
    with hub.worker("w2") as worker:
        worker.register()
        run_and_fail(worker, 3)
        wait_until(lambda: ("crash_loop", "loop") in raised(hub), WITHIN_S)
        wait_until(lambda: ("failed_share", "hub") in raised(hub), WITHIN_S)
        assert ("crash_loop", "loop") in raised(hub, ana)
        assert ("crash_loop", "loop") not in raised(hub, ben)
        worker.run_one()
        wait_until(lambda: ("crash_loop", "loop") not in raised(hub), WITHIN_S)
    wait_until(
        lambda: any(one["event"] == "cleared" and one["job"]["id"] == "loop" for one in got if "job" in one)
    )


def test_that_an_alarm_is_over_is_told_although_its_job_has_left_memory(
    told: tuple[str, list[dict[str, Any]]],
) -> None:
    url, got = told
    # Finished work leaves memory long before the second look.
    with running_hub(alarm_every_s=1.5, notify_retry_s="0.05") as hub:
        watch(hub, url, {"kind": "crash_loop", "above": 1})
        assert ask(hub, "POST", "/jobs", make_spec(id="loop", retries=5))[0] == 201
        with hub.worker("w3") as worker:
            worker.register()
            run_and_fail(worker, 2)
            wait_until(lambda: ("crash_loop", "loop") in raised(hub), WITHIN_S)
            worker.run_one()
            # While the worker stays: a socket that is closed at once may take its last words with it.
            wait_until(lambda: [one["event"] for one in distinct(got)] == ["alarm", "cleared"], WITHIN_S)
    assert [one["job"]["id"] for one in distinct(got)] == ["loop", "loop"]


def run_and_fail(worker: MockWorker, times: int) -> None:
    for _ in range(times):
        worker.run_one("failed", exit_code=1)


@pytest.fixture
def look() -> Callable[[AlarmRule, float, int], list[bool]]:
    """Judge a disk that is so full at a moment; gives what was raised (True) and what is over (False)."""
    state = State()
    alarms = Alarms(cast("Engine", SimpleNamespace(state=state)), Path("/"), 1)

    def judge(rule: AlarmRule, used: float, at_s: int) -> list[bool]:
        state.policy = Policy(alarms=(rule,))
        alarms._disk = used
        changes = alarms._look(state, at_s * 1000)
        for change in changes:
            apply(state, change, Clock(at_s * 1000, at_s * 1000))
        return [change.raised for change in changes]

    return judge


def test_between_the_thresholds_nothing_changes(look: Callable[[AlarmRule, float, int], list[bool]]) -> None:
    rule = AlarmRule(kind="disk", above=0.9, below=0.8)
    steps = [
        (0.85, []),
        (0.91, [True]),
        (0.95, []),
        (0.85, []),
        (0.91, []),
        (0.8, [False]),
        (0.85, []),
        (0.89, []),
    ]
    for at_s, (used, changes) in enumerate(steps):
        assert look(rule, used, at_s) == changes, (at_s, used)


def test_a_share_of_few_is_not_told() -> None:
    state = State()
    alarms = Alarms(cast("Engine", SimpleNamespace(state=state)), Path("/"), 1)
    state.policy = Policy(
        alarms=(AlarmRule(kind="failed_share", above=0.5, below=0.5, least=4, window_s=60),)
    )
    changes = []
    for at_ms, failed in ((0, 0), (1000, 3), (2000, 4)):
        state.ends[Phase.FAILED] = failed
        changes.append([change.raised for change in alarms._look(state, at_ms)])
    assert changes == [[], [], [True]], "three failures of three say little"


def test_what_does_not_last_is_not_told(look: Callable[[AlarmRule, float, int], list[bool]]) -> None:
    rule = AlarmRule(kind="disk", above=0.9, below=0.8, for_s=10)
    assert look(rule, 0.95, 0) == look(rule, 0.95, 9) == []
    assert look(rule, 0.5, 10) == look(rule, 0.95, 11) == look(rule, 0.95, 20) == []
    assert look(rule, 0.95, 21) == [True]
    assert look(rule, 0.7, 22) == look(rule, 0.85, 30) == look(rule, 0.7, 31) == []
    assert look(rule, 0.7, 41) == [False]


def test_a_rule_that_would_flutter_is_refused(hub: RunningHub) -> None:
    status, answer = ask(hub, "PUT", "/policy", {"alarms": [{"kind": "disk", "above": 0.5, "below": 0.9}]})
    assert status == 400
    assert "flutter" in answer["error"]["message"]


def test_the_alerts_for_prometheus_use_metrics_that_there_are() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    known = set(re.findall(r"`(dray_\w+)`", page))
    known |= {f"{name}_{part}" for name in known for part in ("sum", "count")}
    used = set(re.findall(r"\bdray_\w+", (ROOT / "docs/operations/alerts.yml").read_text()))
    assert used
    assert used <= known


def test_prometheus_itself_takes_the_alerts() -> None:
    tool = os.environ.get("DRAY_PROMTOOL") or shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not here: the package `prometheus` has it, or name it in DRAY_PROMTOOL")
    done = subprocess.run(
        [tool, "check", "rules", ROOT / "docs/operations/alerts.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
