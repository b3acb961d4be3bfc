"""A whole hub with a live view in Redis: on a file and on PostgreSQL, started again, killed, told of, refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hub.asking import ask
from tests.valkey import Valkey

from dray.testing.hub_process import RunningHub

WAITING, STATS = "dray:{q:default}:waiting", "dray:{q:default}:stats"


@pytest.fixture(params=["file", "postgres"])
def hub(request: pytest.FixtureRequest, valkey: Valkey, tmp_path: Path) -> Any:
    settings = {"redis": valkey.url}
    if request.param == "postgres":
        settings["store"] = request.getfixturevalue("database")
    home = tmp_path / "home"
    home.mkdir()
    running = RunningHub(home, settings)
    running.start()
    yield running
    running.stop()


def submit(hub: RunningHub, name: str, **fields: Any) -> None:
    status, answer = ask(hub, "POST", "/jobs", {"id": name, "command": ["true"], **fields})
    assert status == 201, answer


def test_jobs_are_shown_and_told_of(
    hub: RunningHub, valkey: Valkey, wait_until: Callable[..., object]
) -> None:
    client = valkey.client()
    submit(hub, "one", priority=3)
    submit(hub, "many", array={"last": 99})
    wait_until(lambda: client.zcard(WAITING) == 2)
    order = [member.partition(":")[2] for member in client.zrange(WAITING, 0, -1)]
    assert order == ["one", "many"]
    assert client.hget(STATS, "waiting_tasks") == "101"
    ask(hub, "POST", "/jobs/one/cancel", {})
    wait_until(lambda: client.zcard(WAITING) == 1)
    wait_until(lambda: '"state":"killed"' in (client.get("dray:{j:one}") or ""))
    types = [fields["type"] for _, fields in client.xrange("dray:{q:default}:events")]
    assert types[0] == "job_submitted"
    assert "job_ended" in types
    hub.kill()
    hub.start()
    submit(hub, "later")
    wait_until(lambda: client.zcard(WAITING) == 2 and client.hget(STATS, "count") == "2")
    assert client.hget(STATS, "epoch") == "2"
    status, told = ask(hub, "GET", "/doctor")
    assert status == 200
    (line,) = [check for check in told["checks"] if check["name"] == "redis"]
    assert line["ok"], line
    assert line["detail"].startswith(f"{valkey.url}: writes")


def test_a_hub_answers_as_ever_while_redis_stands_still_or_is_gone(
    own_valkey: Callable[..., Valkey], tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    server, home = own_valkey(), tmp_path / "home"
    home.mkdir()
    hub = RunningHub(home, {"redis": server.url})
    hub.start()
    try:
        submit(hub, "before")
        client = server.client()
        wait_until(lambda: client.zcard(WAITING) == 1)
        server.pause(signal.SIGSTOP)
        for number in range(20):
            submit(hub, f"stopped{number}")
        assert 'dray_mirror{state="refused"} 0.0' in str(ask(hub, "GET", "/metrics")[1])
        server.kill()
        for number in range(20):
            submit(hub, f"killed{number}")
        wait_until(lambda: 'dray_mirror{state="away"} 1.0' in str(ask(hub, "GET", "/metrics")[1]))
        server.start()
        client = server.client()
        wait_until(lambda: client.zcard(WAITING) == 41)
    finally:
        hub.stop()


def test_metrics_and_settings(hub: RunningHub, valkey: Valkey, wait_until: Callable[..., object]) -> None:
    def metrics() -> str:
        return str(ask(hub, "GET", "/metrics")[1])

    wait_until(lambda: 'dray_mirror{state="writes"} 1.0' in metrics())
    text = metrics()
    assert "dray_mirror_lag_seconds " in text
    assert "dray_mirror_rebuilds_total " in text


def start(tmp_path: Path, *words: str, **env: str) -> str:
    """Start a hub that must not start; gives what it says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
    command = [
        sys.executable,
        "-m",
        "dray.cli.main",
        "hub",
        "--home",
        str(tmp_path / "home"),
        "--port",
        "0",
        *words,
    ]
    done = subprocess.run(command, env=kept | env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "se-cret" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_what_is_wrong_with_an_address_is_told(tmp_path: Path) -> None:
    assert "DRAY_REDIS: Redis is redis://HOST:PORT/DB" in start(tmp_path, DRAY_REDIS="http://:se-cret@there")
    assert "a password in a command" in start(tmp_path, "--redis", "redis://:se-cret@there/0")
    assert "ends with the number of a database" in start(tmp_path, DRAY_REDIS="redis://:se-cret@there/prod")
    assert "cannot be read" in start(tmp_path, DRAY_REDIS="redis://:se-cret@there:port/0")
    said = start(tmp_path, DRAY_REDIS="redis://there", DRAY_HUB_REDIS_PREFIX="{x}")
    assert "DRAY_HUB_REDIS_PREFIX: keys begin with" in said


def test_a_missing_driver_is_told_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "path"
    broken.mkdir()
    (broken / "redis.py").write_text("raise ModuleNotFoundError(\"No module named 'redis'\", name='redis')\n")
    said = start(tmp_path, DRAY_REDIS="redis://127.0.0.1:1", PYTHONPATH=str(broken))
    assert said.endswith(
        "a live view in Redis needs redis, which is not installed here: pip install 'dray[redis]'"
    )
