"""The journal: torn tails are repaired, lost history is never passed off as whole, and it does not grow for ever."""

from __future__ import annotations

import errno
import os

import pytest

from dray.agent.supervisor.records.journal import Journal, decode_record, encode_record, replay_journal
from dray.agent.supervisor.records.ledger import Ledger


def fill(directory, count):
    journal = Journal(str(directory), [1, 2], "boot")
    journal.open()
    for n in range(count):
        journal.append({"k": "epoch", "value": n})
    journal.commit()
    return journal


def test_records_survive(tmp_path):
    journal = fill(tmp_path, 5)
    again = Journal(str(tmp_path), [1, 2], "boot")
    replay = again.open()
    assert [record["value"] for record in replay.records] == [0, 1, 2, 3, 4]
    assert again.journal_id == journal.journal_id
    assert replay.note == ""
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


def test_a_changed_byte_is_noticed():
    line = encode_record({"k": "spec", "uid": "a"})[:-1]
    assert decode_record(line) == {"k": "spec", "uid": "a"}
    for at in range(len(line)):
        assert decode_record(line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]) is None


def test_every_torn_tail_is_cut(tmp_path):
    fill(tmp_path, 3)
    path = tmp_path / "journal"
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for cut in range(last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        journal = Journal(str(tmp_path), [1, 2], "boot")
        replay = journal.open()
        assert [record["value"] for record in replay.records] == [0, 1]
        assert "torn" in replay.note
        assert path.read_bytes() == whole[:last]
        journal.append({"k": "epoch", "value": 9})
        journal.commit()
        assert [record["value"] for record in replay_journal(path.read_bytes()).records] == [0, 1, 9]


def test_damage_in_the_middle_costs_the_identity(tmp_path):
    old_id = fill(tmp_path, 5).journal_id
    path = tmp_path / "journal"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b"x" + lines[3][1:]
    damaged = b"".join(lines)
    path.write_bytes(damaged)
    journal = Journal(str(tmp_path), [1, 2], "boot")
    replay = journal.open()
    assert [record["value"] for record in replay.records] == [0, 1]
    assert [record["value"] for record in replay.beyond] == [3, 4]
    assert journal.journal_id != old_id
    assert (tmp_path / "journal.damaged-1").read_bytes() == damaged
    assert len(replay_journal(path.read_bytes()).records) == 2


def test_a_failed_sync_is_never_taken_for_done(tmp_path, monkeypatch):
    journal = fill(tmp_path, 2)
    before = (tmp_path / "journal").read_bytes()
    journal.append({"k": "epoch", "value": 7})

    def fail(fd):
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr("dray.agent.supervisor.records.journal.sync_file", fail)
    with pytest.raises(OSError, match="broken disk"):
        journal.commit()
    assert journal.pending
    assert journal.suspect
    assert (tmp_path / "journal").read_bytes() == before
    journal.rewrite([encode_record({"k": "epoch", "value": 7})])
    assert not journal.pending
    assert not journal.suspect
    assert replay_journal((tmp_path / "journal").read_bytes()).records == [{"k": "epoch", "value": 7}]


@pytest.mark.parametrize("content", [b"", b"garbage\n", bytes(4096)])
def test_a_journal_without_a_header_is_not_the_same_journal(tmp_path, content):
    old_id = fill(tmp_path, 2).journal_id
    (tmp_path / "journal").write_bytes(content)
    journal = Journal(str(tmp_path), [1, 2], "boot")
    assert journal.open().records == []
    assert journal.journal_id != old_id
    assert (tmp_path / "journal.damaged-1").read_bytes() == content


def test_a_ledger_equals_the_fold_of_its_snapshot():
    ledger = Ledger()
    for n in range(6):
        ledger.fold({"k": "spec", "uid": f"a-{n}", "task_id": "t", "meta": {"n": n}})
    for n in range(5):
        ledger.fold(
            {
                "k": "started",
                "uid": f"a-{n}",
                "pid": n,
                "start": n,
                "boot": "b",
                "at": 1.5,
                "stage": "command",
            }
        )
    for n in range(4):
        ledger.fold({"k": "exit", "uid": f"a-{n}", "exit": {"state": "succeeded", "exit_code": n}})
    ledger.fold({"k": "acked", "uids": ["a-0", "a-1", "a-5"], "at": 10.0})
    ledger.fold({"k": "epoch", "value": 4})
    again = Ledger()
    for line in ledger.snapshot():
        record = decode_record(line[:-1])
        assert record is not None
        again.fold(record)
    assert list(again.snapshot()) == list(ledger.snapshot())
    assert again.exit_of("a-1") == {"state": "succeeded", "exit_code": 1}
    assert [again.phase_of(f"a-{n}") for n in range(7)] == [
        "exited",
        "exited",
        "exited",
        "exited",
        "running",
        "accepted",
        None,
    ]
    assert ledger.find_forgettable(11.0, keep_s=5.0, keep_records=10) == []
    assert ledger.find_forgettable(11.0, keep_s=5.0, keep_records=1) == ["a-0"]
    assert ledger.find_forgettable(16.0, keep_s=5.0, keep_records=10) == ["a-0", "a-1"]


async def test_acked_attempts_are_forgotten_and_the_journal_compacted(rig):
    await rig.stop()
    rig.options = ["--keep-records", "3"]
    journal_id = (await rig.open())["journal_id"]
    inode = os.stat(rig.home / "journal").st_ino
    meta = {"note": "x" * 60_000}
    for n in range(24):
        await rig.result(f"a-{n}", "echo", "hello", meta=meta)
        rig.send({"op": "acked", "uids": [f"a-{n}"]})
    await rig.wait_until(lambda: os.stat(rig.home / "journal").st_ino != inode, "compacted")
    await rig.result("b-1", "true", meta=meta)
    assert (rig.home / "journal").stat().st_size < 1 << 20
    assert sorted(os.listdir(rig.home / "attempts")) == ["a-21", "a-22", "a-23"]
    await rig.kill_supervisor()
    state = await rig.open()
    assert state["journal_id"] == journal_id
    assert [item["uid"] for item in state["attempts"]] == ["b-1"]
    assert (await rig.result("a-23", "false"))["state"] == "succeeded"


async def test_a_damaged_journal_is_served_under_a_new_id_and_its_processes_are_stopped(rig):
    rig.run(rig.task("a-1", "sleep", "1000"))
    pid = (await rig.next("started"))["items"][0]["pid"]
    journal_id = rig.state["journal_id"]
    await rig.kill_supervisor()
    path = rig.home / "journal"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b"!" + lines[1][1:]
    path.write_bytes(b"".join(lines))
    state = await rig.open()
    assert state["journal_id"] != journal_id
    assert state["attempts"] == []
    assert (rig.home / "journal.damaged-1").exists()
    assert not rig.is_alive(pid)
