"""What is in a store can never stop a start: what cannot be used is set aside and told, the rest goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
from tests.hub.asking import ask

from dray.core.lifecycle.state.events import AttemptEnded, Outcome, pack_facts
from dray.core.model.records.records import Attempt, Job
from dray.testing.hub_process import RunningHub

GARBAGE = b"\xc1\xff not msgpack"


def spoil(home: Path) -> None:
    """Put values where an older or a damaged hub might have left them."""
    with closing(sqlite3.connect(home / "hub.sqlite", isolation_level=None)) as store:
        (packed,) = store.execute("SELECT record FROM attempts WHERE job_id = 'done'").fetchone()
        attempt = msgspec.msgpack.decode(packed, type=Attempt)
        attempt.wall_s = 1e18
        store.execute(
            "UPDATE attempts SET record = ?, wall_s = 1e18 WHERE job_id = 'done'",
            (msgspec.msgpack.encode(attempt),),
        )
        (packed,) = store.execute("SELECT record FROM jobs WHERE id = 'odd-spec'").fetchone()
        job = msgspec.msgpack.decode(packed, type=Job)
        job.spec = GARBAGE
        store.execute("UPDATE jobs SET record = ? WHERE id = 'odd-spec'", (msgspec.msgpack.encode(job),))
        store.execute("UPDATE jobs SET record = ? WHERE id = 'odd-row'", (GARBAGE,))
        store.execute("INSERT INTO workers (id, record) VALUES ('odd', ?)", (GARBAGE,))
        store.execute("INSERT INTO tokens (id, record) VALUES ('odd', ?)", (GARBAGE,))
        store.execute("INSERT INTO ledger (kind, key, record) VALUES ('meter', 'odd', ?)", (GARBAGE,))
        store.execute("INSERT INTO ledger (kind, key, record) VALUES ('unknown', 'kind', ?)", (GARBAGE,))
        (seq,) = store.execute("SELECT max(seq) FROM log").fetchone()
        ended = AttemptEnded("w1", Outcome(job_id="waits", index=0, uid=7, state="?"))  # type: ignore[arg-type]  # odd
        for number, facts in enumerate((GARBAGE, pack_facts([ended])), 1):
            store.execute(
                "INSERT INTO log (seq, now_ms, at_ms, facts, notes) VALUES (?, 0, 0, ?, x'90')",
                (seq + number, facts),
            )
        store.execute("UPDATE meta SET counters = ?", (GARBAGE,))


def test_odd_values_are_set_aside_and_told(tmp_path: Path) -> None:
    hub = RunningHub(tmp_path, {"reserve_bytes": 4096})
    hub.start()
    try:
        assert ask(hub, "POST", "/jobs", {"id": "done", "name": "n", "command": ["true"]})[0] == 201
        with hub.worker("w1") as worker:
            worker.register()
            worker.run_one()
            worker.recv("ack")
        for job_id in ("waits", "odd-spec", "odd-row"):
            assert ask(hub, "POST", "/jobs", {"id": job_id, "command": ["true"]})[0] == 201
        hub.stop()
        spoil(tmp_path)
        hub.start()
        assert ask(hub, "GET", "/jobs/waits")[1]["state"] == "pending"
        assert ask(hub, "GET", "/jobs/done")[1]["state"] == "succeeded"
        assert ask(hub, "GET", "/jobs/odd-row")[0] == 404
        assert ask(hub, "GET", "/jobs")[0] == 200
        assert ask(hub, "GET", "/metrics")[0] == 200
        assert ask(hub, "POST", "/jobs", {"id": "new", "command": ["true"]})[0] == 201
        with hub.worker("w1") as worker:
            worker.register()
            assert {worker.run_one().task_id for _ in range(2)} == {"waits", "new"}
            worker.recv("ack")
        doctor = ask(hub, "GET", "/doctor")[1]
        told = " ".join(report["what"] for report in doctor["reports"])
        for what in ("jobs", "workers", "tokens", "job odd-spec", "ledger", "turn", "counters"):
            assert what in told, (what, told)
        assert not doctor["ok"]
        hub.restart()
        assert ask(hub, "GET", "/jobs/new")[1]["state"] == "succeeded"
    finally:
        hub.stop()
