"""A store that is taken away under a live hub, and one that has silently lost its newest turns."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.hub.asking import ask, wait_until

from dray.cli.base.hub import Hub
from dray.client.reach.discovery import settle_config
from dray.testing.hub_process import RunningHub

FRAME = 4096 + 24
# Where the index of a write-ahead log says how many of its frames are in the database, and how many a checkpoint was
# about to copy: one that was killed in the middle of that has copied some of them.
COPIED, ATTEMPTED = 96, 128


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    hub = RunningHub(tmp_path, {"reserve_bytes": 4096})
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


def submit(hub: RunningHub, job_id: str) -> int:
    return ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"]})[0]


def wait_exit(hub: RunningHub) -> str:
    """Wait for the hub to end by itself; gives what it said last."""
    assert hub._process is not None
    assert hub._process.wait(60) == 1
    return (hub.home / "hub.err").read_text().strip().splitlines()[-1]


def remove(store: Path) -> None:
    store.unlink()


def replace(store: Path) -> None:
    shutil.copyfile(store, store.with_name("other"))
    store.with_name("other").replace(store)


def overwrite(store: Path) -> None:
    with (
        closing(sqlite3.connect(store)) as source,
        closing(sqlite3.connect(store.with_name("older"))) as copy,
    ):
        source.backup(copy)
    shutil.copyfile(store.with_name("older"), store)


def remove_log(store: Path) -> None:
    store.with_name(store.name + "-wal").unlink()


@pytest.mark.parametrize("harm", [remove, replace, overwrite, remove_log])
def test_no_answer_leaves_once_the_store_was_taken_away(
    hub: RunningHub, harm: Callable[[Path], None]
) -> None:
    assert submit(hub, "before") == 201
    harm(hub.home / "hub.sqlite")
    # Whatever comes back now is no promise and no picture of what is not there any more.
    assert submit(hub, "after") in (0, 503)
    assert ask(hub, "GET", "/jobs/before")[0] in (0, 503)
    said = wait_exit(hub)
    assert "hub.sqlite" in said
    assert "dray hub: stopped" in said
    assert "restored" in said


def test_an_idle_hub_notices_too(hub: RunningHub) -> None:
    (hub.home / "hub.sqlite").unlink()
    assert "is gone" in wait_exit(hub)
    hub.stop()
    # What was there is not quietly replaced by an empty store.
    with pytest.raises(Exception, match="put the file back"):
        hub.start()
    assert not (hub.home / "hub.sqlite").exists()


def count_frames(store: Path) -> tuple[int, int]:
    """Of the write-ahead log: how many frames may be in the database already, and how many there are."""
    index = store.with_name(store.name + "-shm").read_bytes()
    copied = max(int.from_bytes(index[at : at + 4], sys.byteorder) for at in (COPIED, ATTEMPTED))
    content = store.with_name(store.name + "-wal").read_bytes()
    salt = content[16:24]
    frames = 0
    while content[32 + frames * FRAME + 8 : 32 + frames * FRAME + 16] == salt:
        frames += 1
    return copied, frames


def alone(hub: RunningHub) -> int:
    """How many frames are in the log and nowhere else."""
    copied, frames = count_frames(hub.home / "hub.sqlite")
    return frames - copied


def flip_bit_in_log(store: Path) -> None:
    """One bit in the middle of what only the write-ahead log holds: SQLite drops that frame and all behind it.

    In what a checkpoint has copied already it would make the file a damaged one instead.
    """
    log = store.with_name(store.name + "-wal")
    content = bytearray(log.read_bytes())
    copied, frames = count_frames(store)
    assert frames - copied > 20
    content[32 + ((copied + frames) // 2) * FRAME + 2000] ^= 1
    log.write_bytes(content)


def test_lost_turns_are_noticed_and_go_the_way_of_a_restored_backup(hub: RunningHub) -> None:
    with hub.worker("w1") as worker:
        worker.register()
        submitted = 0
        assert submit(hub, "first") == 201
        worker.ready()
        running = worker.assigned()
        worker.accept(running)
        worker.recv("ack")
        # The log begins anew after each checkpoint, whenever that is: enough of it must be in the log alone.
        while submitted < 60 or (submitted < 1000 and alone(hub) < 40):
            assert submit(hub, f"j{submitted}") == 201
            submitted += 1
        assert submit(hub, "last") == 201
        _, before = ask(hub, "GET", "/hub")
        worker.drop()
    hub.kill()
    flip_bit_in_log(hub.home / "hub.sqlite")
    hub.start()
    gone = [number for number in range(submitted) if ask(hub, "GET", f"/jobs/j{number}")[0] == 404]
    assert gone, "the test has lost what it meant to lose"
    assert ask(hub, "GET", "/jobs/last")[0] == 404
    _, doctor = ask(hub, "GET", "/doctor")
    assert not doctor["ok"]
    (report,) = doctor["reports"]
    assert report["kind"] == "lost turns"
    assert ask(hub, "GET", "/hub")[1]["reports"] == 1
    assert doctor["facts"]["epoch"] > before["epoch"]
    assert list(hub.home.glob("hub.sqlite-wal.lost-*")), "what SQLite dropped is kept aside"
    assert "dray_reports 1.0" in ask(hub, "GET", "/metrics")[1]
    # The task still runs on its worker, and nobody here knows it: listed, never killed.
    with hub.worker("w1") as worker:
        told = worker.register(
            active_tasks=[{"task_id": "last", "attempt": running.attempt, "state": "running"}],
            max_epoch_seen=1,
        )
        assert not told.payload.get("stop")
    _, doctor = ask(hub, "GET", "/doctor")
    assert not next(check for check in doctor["checks"] if check["name"] == "quarantine")["ok"]
    # Told until somebody has dealt with it, also by the next hub; then it is over.
    hub.kill()
    hub.start()
    _, doctor = ask(hub, "GET", "/doctor")
    assert [one["id"] for one in doctor["reports"]] == [report["id"]]
    (hub.home / "reports" / f"{report['id']}.json").unlink()
    assert not ask(hub, "GET", "/doctor")[1]["reports"]


def test_a_kill_alone_accuses_nobody(hub: RunningHub) -> None:
    for number in range(3):
        assert submit(hub, f"j{number}") == 201
        hub.kill()
        hub.start()
    _, doctor = ask(hub, "GET", "/doctor")
    assert doctor["ok"], doctor
    assert not doctor["reports"]


def test_a_restore_on_purpose_can_be_said(hub: RunningHub) -> None:
    """The documented steps: stop, put the file back, remove what belongs to the newer one, start."""
    store = hub.home / "hub.sqlite"
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(hub.home / "backup")) as copy:
        source.backup(copy)
    assert submit(hub, "later") == 201
    hub.stop()
    shutil.copyfile(hub.home / "backup", store)
    hub.start()
    assert [one["kind"] for one in ask(hub, "GET", "/doctor")[1]["reports"]] == ["lost turns"]
    shutil.rmtree(hub.home / "reports")
    hub.stop()
    shutil.copyfile(hub.home / "backup", store)
    (hub.home / "hub.sqlite.witness").unlink()
    hub.start()
    assert ask(hub, "GET", "/doctor")[1]["ok"]


def test_a_worker_is_a_witness_too(hub: RunningHub) -> None:
    """The store and all that lies beside it are put back: only who was told of its last turns can say so."""
    kept = hub.home.parent / f"{hub.home.name}-kept"
    with hub.worker("w1") as worker:
        worker.register()
        worker.drop()
    hub.stop()
    shutil.copytree(hub.home, kept)
    hub.start()
    with hub.worker("w1") as worker:
        worker.register()
        assert submit(hub, "later") == 201
        worker.heartbeat()
        told = worker.recv("ack").payload
        worker.drop()
    hub.stop()
    for name in ("hub.sqlite", "hub.sqlite.witness"):
        shutil.copyfile(kept / name, hub.home / name)
    hub.start()
    hub.restart()
    assert not ask(hub, "GET", "/doctor")[1]["reports"], "nothing here knows"
    with hub.worker("w2") as worker:
        worker.register(max_epoch_seen=1, max_turn_seen=1)
    assert not ask(hub, "GET", "/doctor")[1]["reports"], "what it was told is there"
    with hub.worker("w1") as worker:
        worker.register(max_epoch_seen=told["epoch"], max_turn_seen=told["turn"] + 50)
    (report,) = ask(hub, "GET", "/doctor")[1]["reports"]
    assert report["kind"] == "lost turns"


@pytest.fixture
def put_back(hub: RunningHub) -> Callable[[], None]:
    """Keeps the store and all that lies beside it as they are now; gives what puts them back."""
    kept = hub.home.parent / f"{hub.home.name}-kept"
    hub.stop()
    shutil.copytree(hub.home, kept)
    hub.start()

    def put() -> None:
        hub.stop()
        for name in ("hub.sqlite", "hub.sqlite.witness"):
            shutil.copyfile(kept / name, hub.home / name)
        hub.start()

    return put


def test_a_client_is_a_witness_too(hub: RunningHub, put_back: Callable[[], None]) -> None:
    """Of a hub that counts its epochs and turns again from the same numbers as the one that is lost."""
    with hub.connect() as client:
        assert client.submit({"id": "later", "command": ["true"]}).id
        before = ask(hub, "GET", "/hub")[1]["epoch"]
        hub.restart()
        assert client.submit({"id": "latest", "command": ["true"]}).id
        assert not ask(hub, "GET", "/doctor")[1]["reports"], "what it was told is there"
        put_back()
        assert [job.id for job in client.jobs()] == []
    _, doctor = ask(hub, "GET", "/doctor")
    (report,) = doctor["reports"]
    assert report["kind"] == "lost turns"
    assert not doctor["ok"]
    wait_until(lambda: ask(hub, "GET", "/hub")[1]["epoch"] > before + 1)


def turn_told(hub: RunningHub, job_id: str) -> str:
    """Submit a job by plain HTTP; gives what the hub says of its turns with the answer."""
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=30)
    headers = {"Authorization": f"Bearer {hub.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/api/v1/jobs", json.dumps({"id": job_id, "command": ["true"]}), headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        return answer.headers["Dray-Turn"]
    finally:
        connection.close()


def test_nobody_can_claim_a_turn_that_was_never_told(hub: RunningHub, put_back: Callable[[], None]) -> None:
    early, command = turn_told(hub, "early"), Hub(settle_config(hub.home))
    told = [turn_told(hub, f"later{number}") for number in range(20)][-1]
    reader = {"Authorization": f"Bearer {hub.make_token('ana', ['read'])}"}
    raw = bytearray(base64.urlsafe_b64decode(told))
    raw[16] ^= 0x40  # the turn, by far
    forged = [base64.urlsafe_b64encode(raw).decode(), told[:32], "~", "A" * 64, "9" * 5000, early, told]
    for word in forged:
        assert ask(hub, "GET", "/hub", headers={**reader, "Dray-Turn": word})[0] == 200
    hub.restart()
    for word in forged:
        assert ask(hub, "GET", "/hub", headers={**reader, "Dray-Turn": word})[0] == 200
    assert command.get("/jobs/early")["id"] == "early"
    assert not ask(hub, "GET", "/doctor")[1]["reports"]
    put_back()
    hub.restart()
    reader = {"Authorization": f"Bearer {hub.make_token('ana', ['read'])}"}
    for word in forged[:-2]:
        assert ask(hub, "GET", "/hub", headers={**reader, "Dray-Turn": word})[0] == 200
    assert not ask(hub, "GET", "/doctor")[1]["reports"]
    # Epochs are past what it was told under by now; the turn is what is missing.
    assert command.get("/hub")["reports"] == 1
    assert ask(hub, "GET", "/hub", headers={**reader, "Dray-Turn": told})[0] == 200
    (report,) = ask(hub, "GET", "/doctor")[1]["reports"]
    assert (report["kind"], report["count"]) == ("lost turns", 1)
