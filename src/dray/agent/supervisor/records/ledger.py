"""What the journal says, folded: every attempt known to this home and how far it got.

Pure bookkeeping over records; touches no file and no process. The ledger is changed only by folding a record that is
also appended to the journal, so a replay after a crash arrives at the same state. Finished and acknowledged attempts
are kept (a resent uid must not start twice), as encoded bytes: thousands of objects would make every fork dearer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.agent.supervisor.records.journal import decode_record, encode_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dray.agent.supervisor.records.journal import Record

KEEP_S = 7 * 86400.0
KEEP_RECORDS = 10_000
# Of the processes that left their parents; most of them carry a mark as well.
MOST_ADOPTED = 64


class Entry:
    """One attempt that is not yet acknowledged. `starting`: it may run, but its pid is not on record (yet)."""

    __slots__ = ("adopted", "exit", "meta", "started", "starting", "task_id", "uid")

    def __init__(self, uid: str, task_id: str, meta: object) -> None:
        self.uid = uid
        self.task_id = task_id
        self.meta = meta
        self.starting: Record | None = None
        self.adopted: list[Record] = []
        self.started: Record | None = None
        self.exit: Record | None = None

    @property
    def phase(self) -> str:
        if self.exit is not None:
            return "exited"
        return "accepted" if self.started is None else "running"

    def record(self) -> Record:
        return {
            "k": "attempt",
            "uid": self.uid,
            "task_id": self.task_id,
            "meta": self.meta,
            "starting": self.starting,
            "adopted": self.adopted,
            "started": self.started,
            "exit": self.exit,
        }


class Ledger:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.acked: dict[str, tuple[float, bytes]] = {}
        self.max_epoch = 0

    def fold(self, record: Record) -> None:
        kind = record.get("k")
        if kind == "spec":
            self.entries[record["uid"]] = Entry(record["uid"], record["task_id"], record["meta"])
        elif kind == "starting":
            if (entry := self.entries.get(record["uid"])) is not None:
                entry.starting = record
        elif kind == "started":
            if (entry := self.entries.get(record["uid"])) is not None:
                entry.starting = None
                first = entry.started["at"] if entry.started is not None else record["at"]
                entry.started = {**record, "first_at": first}
        elif kind == "adopted":
            if (entry := self.entries.get(record["uid"])) is not None and len(entry.adopted) < MOST_ADOPTED:
                entry.adopted.append(record)
        elif kind == "exit":
            if (entry := self.entries.get(record["uid"])) is not None:
                entry.exit = record["exit"]
        elif kind == "acked":
            for uid in record["uids"]:
                self._fold_ack(uid, record["at"])
        elif kind == "epoch":
            self.max_epoch = max(self.max_epoch, record["value"])
        elif kind == "attempt":
            entry = Entry(record["uid"], record["task_id"], record["meta"])
            entry.starting, entry.started = record.get("starting"), record["started"]
            entry.adopted = record.get("adopted") or []
            entry.exit = record["exit"]
            self.entries[entry.uid] = entry
        elif kind == "kept":
            self.acked[record["uid"]] = (record["at"], encode_record(record))
        elif kind == "forgotten":
            for uid in record["uids"]:
                self.acked.pop(uid, None)

    def _fold_ack(self, uid: str, at: float) -> None:
        entry = self.entries.get(uid)
        if entry is not None and entry.exit is not None:
            del self.entries[uid]
            self.acked[uid] = (at, encode_record({"k": "kept", "uid": uid, "at": at, "exit": entry.exit}))

    def drop_open(self) -> list[str]:
        """Forget what has not ended, and say what that was: in a copy of a home it is the original's."""
        uids = [uid for uid, entry in self.entries.items() if entry.exit is None]
        for uid in uids:
            del self.entries[uid]
        return uids

    def phase_of(self, uid: str) -> str | None:
        entry = self.entries.get(uid)
        if entry is not None:
            return entry.phase
        return "exited" if uid in self.acked else None

    def exit_of(self, uid: str) -> Record | None:
        entry = self.entries.get(uid)
        if entry is not None:
            return entry.exit
        kept = self.acked.get(uid)
        record = decode_record(kept[1].rstrip()) if kept is not None else None
        return record["exit"] if record is not None else None

    def find_forgettable(self, now: float, keep_s: float, keep_records: int) -> list[str]:
        """Acknowledged attempts past their keep, oldest first: a dict keeps the order of acknowledgement."""
        too_many = len(self.acked) - keep_records
        uids: list[str] = []
        for uid, (at, _) in self.acked.items():
            if len(uids) >= too_many and now - at < keep_s:
                break
            uids.append(uid)
        return uids

    def snapshot(self) -> Iterator[bytes]:
        """Encoded records that fold to this very ledger."""
        if self.max_epoch:
            yield encode_record({"k": "epoch", "value": self.max_epoch})
        for _, line in self.acked.values():
            yield line
        for entry in self.entries.values():
            yield encode_record(entry.record())
