"""An exception inside a decision: that request is refused and reported, the hub reloads, everybody else goes on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.hub.asking import ask, wait_until
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from dray.cli.main import main
from dray.testing.hub_process import RunningHub, _environment

SCRIPT = Path(__file__).with_name("faulty_hub.py")


class FaultyHub(RunningHub):
    """A hub with faults built in."""

    def start(self) -> None:
        port = str(urlsplit(self.url).port) if self.url else "0"
        with (self.home / "hub.err").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(self.home), port],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env=_environment(self._settings),
            )
        self.url = self._read_ready(self._process)

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Ask once; 503 while it reloads is asked again, as every client of dray does."""
        headers = {"Idempotency-Key": key} if key else {}
        deadline = time.monotonic() + 60
        while True:
            status, answer = ask(self, method, path, body, headers)
            if status not in (0, 503) or time.monotonic() > deadline:
                return status, answer

    def submit(self, name: str, key: str = "") -> tuple[int, Any]:
        return self.call("POST", "/jobs", {"name": name, "command": ["true"]}, key)

    def doctor(self) -> Any:
        return self.call("GET", "/doctor")[1]

    def check(self, name: str) -> Any:
        return next(check for check in self.doctor()["checks"] if check["name"] == name)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FaultyHub]:
    hub = FaultyHub(tmp_path, {})
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


def test_a_request_that_breaks_a_turn_is_refused_reported_and_not_tried_again(
    hub: FaultyHub, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = hub.pid
    _, before = hub.submit("good")
    with hub.worker("w1") as worker:
        worker.register()
        status, answer = hub.submit("poison", key="k1")
        assert (status, answer["error"]["code"]) == (500, "internal")
        # Everybody was sent away and comes back to the same process, which has forgotten nothing.
        with pytest.raises(ConnectionClosed) as closed:
            worker.recv("nothing", 20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    # Who comes while it reloads is asked to come again.
    wait_until(lambda: hub.call("GET", "/hub")[0] == 200)
    with hub.worker("w1") as worker:
        worker.register()
        assert hub.call("GET", f"/jobs/{before['id']}")[1]["name"] == "good"
        assert hub.submit("good")[0] == 201
    epoch = hub.call("GET", "/hub")[1]["epoch"]
    assert epoch == 2
    # The retry gets the same refusal and breaks nothing; so it is after a restart of the process.
    assert hub.submit("poison", key="k1")[0] == 500
    assert hub.call("GET", "/hub")[1]["epoch"] == epoch
    (report,) = hub.doctor()["reports"]
    assert report["id"] in answer["error"]["message"]
    assert (report["kind"], report["error"], report["who"]) == ("submit", "ZeroDivisionError", before["user"])
    assert any("faulty_hub.py" in line for line in report["trace"])
    assert "secret" not in json.dumps(report)
    assert hub.pid == pid
    hub.kill()
    assert main(["doctor", "--home", str(hub.home)]) == 1
    shown = capsys.readouterr().out
    assert report["id"] in shown
    assert "ZeroDivisionError" in shown
    hub.start()
    assert hub.submit("poison", key="k1")[0] == 500
    assert hub.call("GET", "/hub")[1]["epoch"] == epoch + 1
    assert not hub.check("reports")["ok"]
    (hub.home / "reports" / f"{report['id']}.json").unlink()
    assert hub.doctor()["ok"]


def test_the_poisonous_one_is_found_among_many(hub: FaultyHub) -> None:
    """A turn fails over what one of its requests brought: that one is found, and the others are taken."""
    from concurrent.futures import ThreadPoolExecutor

    names = ["good"] * 6 + ["unspellable"] + ["good"] * 5
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda pair: hub.submit(pair[1], key=f"k{pair[0]}"), enumerate(names)))
    assert [status for status, _ in answers] == [500 if name == "unspellable" else 201 for name in names]
    listed = hub.call("GET", "/jobs")[1]["jobs"]
    assert sorted(job["name"] for job in listed) == ["good"] * 11


def test_a_pass_that_fails_for_ever_is_left_out_and_told(hub: FaultyHub) -> None:
    (hub.home / "broken").touch()

    def want() -> str:
        """Be a worker that wants work, and comes back whenever it is sent away."""
        with contextlib.suppress(ConnectionClosed, InvalidHandshake), hub.worker("w1") as worker:
            worker.register()
            worker.ready()
            return worker.recv("no_work").type
        return ""

    hub.submit("good")
    wait_until(want)
    wait_until(lambda: "no new work is placed" in hub.check("turns")["detail"])
    # Recorded, though nothing can be placed; one that falls just when the pass is tried again asks once more.
    keys = iter(range(100))
    wait_until(lambda: hub.submit("good", key=f"k{next(keys)}")[0] == 201)
    (hub.home / "broken").unlink()
    wait_until(lambda: hub.check("turns")["ok"])

    def work() -> bool:
        with (
            contextlib.suppress(ConnectionClosed, InvalidHandshake, TimeoutError),
            hub.worker("w2") as worker,
        ):
            worker.register()
            worker.ready()
            return bool(worker.assigned())
        return False

    wait_until(work)


def test_what_cannot_be_sent_or_answered_is_no_concern_of_others(hub: FaultyHub) -> None:
    slots = {"batch_total": 2, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
    with hub.worker("w1", slots=slots) as worker:
        worker.register()
        bad, good = hub.submit("unsendable")[1], hub.submit("good")[1]
        worker.ready(credits=2)
        assert worker.recv("job_assign").payload["spec"]["id"] == good["id"]
        odd = hub.submit("unanswerable")[1]
        status, answer = hub.call("GET", f"/jobs/{odd['id']}/why")
        assert (status, answer["error"]["code"]) == (500, "internal")
        assert hub.call("GET", f"/jobs/{bad['id']}")[0] == 200
        assert hub.call("GET", "/hub")[1]["epoch"] == 1, "nothing had to be reloaded"
    assert {report["kind"] for report in hub.doctor()["reports"]} == {"effect", "explain_job"}
