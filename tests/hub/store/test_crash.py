"""kill -9 in the middle of commits: what was acknowledged is there, in order, and the store opens again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dray.hub.store.sqlite.store import SqliteStore

# Every turn also carries a key, every tenth is followed by rows; a line on stdout is the acknowledgement. The log is
# small, so that copies of it into the database are under way when the process dies.
CHILD = """
import sys
from pathlib import Path
from dray.core.model.records.records import Job
from dray.hub.store.base import JobRow, KeyRow, Projection, Turn
from dray.hub.store.sqlite.store import SqliteStore

store = SqliteStore.open(Path(sys.argv[1]), reserve_bytes=0, wal_bytes=1 << 17)
store.begin_epoch()
applied = store.load().applied_seq
tail = store.tail(applied)
seq = tail[-1].seq if tail else applied
rows = []
while True:
    seq += 1
    store.commit(Turn(seq, seq, seq, b"turn %d " % seq * 50, b"", keys=[KeyRow("ana", f"k{seq}", seq, (f"j{seq}",))]))
    print(seq, flush=True)
    fixed = dict(user="ana", name="n", queue="q", priority=0, tier="normal", spec=b"", numbered=False, total=1)
    rows.append(JobRow(Job(id=f"j{seq}", seq=seq, **fixed), {}))
    if seq % 10 == 0:
        store.project(Projection(seq, seq, b"%d" % seq, jobs=rows))
        rows = []
"""


def run_and_kill(path: Path, turns: int) -> int:
    """Let a process commit, kill it after so many acknowledgements, and give the last one that it sent."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        line = ""
        for _ in range(turns):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
        child.kill()
        rest = child.stdout.read().splitlines(keepends=True)
    whole = [piece for piece in rest if piece.endswith("\n")]
    return int(whole[-1] if whole else line)


def test_no_acknowledged_turn_is_lost(open_sqlite: Callable[..., SqliteStore], tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    for round_ in range(1, 4):
        acknowledged = run_and_kill(path, 150 + 37 * round_)
        store = open_sqlite(path, check="always")
        found = store.tail(0, limit=1 << 20)
        seqs = [entry.seq for entry in found]
        assert seqs == list(range(1, len(seqs) + 1))
        assert acknowledged <= seqs[-1] <= acknowledged + 1
        assert all(entry.facts == b"turn %d " % entry.seq * 50 for entry in found)
        key = store.find_key("ana", f"k{acknowledged}")
        assert key is not None
        assert key.job_ids == (f"j{acknowledged}",)
        check_rows(store, acknowledged)
        store.close(clean=False)


def check_rows(store: SqliteStore, acknowledged: int) -> None:
    """Rows reach exactly as far as they say."""
    snapshot = store.load()
    assert acknowledged - 10 <= snapshot.applied_seq <= acknowledged + 1
    assert snapshot.counters == b"%d" % snapshot.applied_seq
    seqs = [job.seq for job in snapshot.jobs]
    assert seqs[-1] == snapshot.applied_seq
    assert seqs == sorted(seqs)
