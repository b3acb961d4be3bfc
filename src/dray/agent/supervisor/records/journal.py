"""The append-only journal: one checksummed JSON record per line, synced in groups.

Owns the file, its identity and the reserve that keeps room for the last records on a full disk; knows nothing of what a
record means. Surprising rule: only a bad *tail* is repaired in silence. If whole records follow a bad one, history has
been lost, so what was read goes into a new file under a new journal id and the damaged file is set aside.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Record = dict[str, Any]

RESERVE_BYTES = 1 << 20
COMPACT_MIN_BYTES = 1 << 20
VERSION = 1
# How soon a record has to be safe: with the next write; from a death of this process; from a death of the host.
LAZY, WRITTEN, SYNCED = range(3)
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
sync_file = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter

_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_record(record: Record) -> bytes:
    body = _dump(record).encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


def decode_record(line: bytes) -> Record | None:
    """The record in one line without its newline; None when the line is not whole."""
    try:
        if line[8:9] != b" " or int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        record = json.loads(line[9:])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class Replay:
    """What a journal held: `beyond` are whole records behind the damage, good for finding processes only."""

    __slots__ = ("beyond", "good_bytes", "header", "journal_id", "note", "records")

    def __init__(self) -> None:
        self.journal_id = ""
        self.header: Record = {}
        self.records: list[Record] = []
        self.beyond: list[Record] = []
        self.good_bytes = 0
        self.note = ""

    @property
    def damaged(self) -> bool:
        return bool(self.beyond) or not self.journal_id

    def is_copied(self, inode: list[int], boot_id: str) -> bool:
        """Whether it was written in another folder than this. After a reboot a disk may have another number."""
        home = self.header.get("home")
        if not home:
            return False
        return home[1] != inode[1] or (home[0] != inode[0] and self.header.get("boot") == boot_id)


def replay_journal(data: bytes) -> Replay:
    replay = Replay()
    offset, bad_at = 0, -1
    while offset < len(data):
        end = data.find(b"\n", offset)
        record = decode_record(data[offset:end]) if end >= 0 else None
        if record is None:
            bad_at = offset if bad_at < 0 else bad_at
        elif bad_at >= 0:
            replay.beyond.append(record)
        elif record.get("k") == "journal" and not replay.journal_id:
            replay.journal_id, replay.header = str(record["id"]), record
        else:
            replay.records.append(record)
        if end < 0:
            break
        offset = end + 1
    replay.good_bytes = len(data) if bad_at < 0 else bad_at
    if bad_at >= 0:
        what = "damaged in the middle" if replay.beyond else "torn at its end"
        replay.note = f"journal {what}: byte {bad_at} of {len(data)}, {len(replay.records)} records before it"
    if not replay.journal_id:
        replay.beyond, replay.records = replay.records + replay.beyond, []
        replay.note = replay.note or "journal without a header: nothing in it can be trusted"
    return replay


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Journal:
    def __init__(self, directory: str, inode: list[int], boot_id: str) -> None:
        self._directory = directory
        self._inode, self._boot_id = inode, boot_id
        self._path = os.path.join(directory, "journal")
        self._reserve = os.path.join(directory, "reserve")
        self._fd = -1
        self._buffer: list[bytes] = []
        self._urgency = LAZY
        self._suspect = False
        self.unsynced = False
        self._compacted_bytes = 0
        self.size_bytes = 0
        self.journal_id = ""
        self.reserved = False

    def open(self) -> Replay:
        """Read what is there, repair a torn tail, and be ready to append."""
        try:
            with open(self._path, "rb") as file:
                replay = replay_journal(file.read())
        except FileNotFoundError:
            replay = Replay()
            self.restore_reserve()
            self.rewrite([], os.urandom(16).hex())
            return replay
        if replay.damaged:
            aside = self._set_aside()
            replay.note += f"; kept as {aside}, going on with a new journal"
            self.rewrite(map(encode_record, replay.records), os.urandom(16).hex())
        else:
            self._reopen(replay.journal_id)
            if self.size_bytes > replay.good_bytes:
                os.ftruncate(self._fd, replay.good_bytes)
                os.fsync(self._fd)
                self.size_bytes = replay.good_bytes
            self._compacted_bytes = self.size_bytes
        self.restore_reserve()
        return replay

    def _set_aside(self) -> str:
        number = 1
        while os.path.exists(f"{self._path}.damaged-{number}"):
            number += 1
        os.rename(self._path, f"{self._path}.damaged-{number}")
        return f"journal.damaged-{number}"

    def _reopen(self, journal_id: str) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self.size_bytes = os.fstat(self._fd).st_size
        self.journal_id = journal_id

    def append(self, record: Record, urgency: int = SYNCED) -> None:
        self._buffer.append(encode_record(record))
        self._urgency = max(self._urgency, urgency)

    @property
    def pending(self) -> bool:
        return bool(self._buffer)

    @property
    def wants_commit(self) -> bool:
        return self._urgency > LAZY

    @property
    def wants_compaction(self) -> bool:
        """Doubling since the last compaction keeps the cost of rewriting below the cost of appending."""
        return self.size_bytes > max(COMPACT_MIN_BYTES, 2 * self._compacted_bytes)

    def commit(self, sync: bool = False) -> None:
        """Write all that was appended, together, and sync where a record or the caller asks for it.

        On failure it stays pending and the file is as before.
        """
        sync = sync or self._urgency == SYNCED
        if not self._buffer and not (sync and self.unsynced):
            return
        data = b"".join(self._buffer)
        try:
            self._write(data, sync)
        except OSError as error:
            if error.errno not in FULL_ERRORS or not self.reserved:
                raise
            self._free_reserve()
            self._write(data, sync)
        self.size_bytes += len(data)
        self._buffer.clear()
        self._urgency = LAZY
        self.unsynced = not sync

    def _write(self, data: bytes, sync: bool) -> None:
        syncing = False
        try:
            write_whole(self._fd, data)
            if sync:
                syncing = True
                sync_file(self._fd)
        except OSError as error:
            # After a failed sync the kernel may hold the pages for clean: only a rewrite can be trusted then.
            lost = syncing and self.unsynced
            self._suspect = self._suspect or lost or error.errno not in FULL_ERRORS
            os.ftruncate(self._fd, self.size_bytes)
            raise

    @property
    def suspect(self) -> bool:
        return self._suspect

    def rewrite(self, lines: Iterable[bytes], journal_id: str = "") -> None:
        """Replace the file by these encoded records, atomically; pending ones are taken to be among them."""
        journal_id = journal_id or self.journal_id
        fresh = self._path + ".new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            header = {
                "k": "journal",
                "v": VERSION,
                "id": journal_id,
                "home": self._inode,
                "boot": self._boot_id,
            }
            chunk = [encode_record(header)]
            for line in lines:
                chunk.append(line)
                if len(chunk) >= 1024:
                    write_whole(fd, b"".join(chunk))
                    chunk.clear()
            write_whole(fd, b"".join(chunk))
            os.fsync(fd)
        except OSError:
            os.unlink(fresh)
            raise
        finally:
            os.close(fd)
        os.rename(fresh, self._path)
        # At once on the new file: the old one has no name any more, and a failing sync below must not leave us on it.
        self._reopen(journal_id)
        sync_directory(self._directory)
        self._compacted_bytes = self.size_bytes
        self._buffer.clear()
        self._urgency = LAZY
        self._suspect = self.unsynced = False

    def put_off_compaction(self) -> None:
        """After a failed compaction: try again only when the file has doubled once more."""
        self._compacted_bytes = self.size_bytes

    def restore_reserve(self) -> bool:
        """Claim the spare room again; False while the disk has none."""
        try:
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            self.reserved = False
            return False
        try:
            if os.fstat(fd).st_size < RESERVE_BYTES:
                write_whole(fd, bytes(RESERVE_BYTES))
                os.fsync(fd)
            self.reserved = True
        except OSError:
            self._free_reserve()
        finally:
            os.close(fd)
        return self.reserved

    def _free_reserve(self) -> None:
        self.reserved = False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._reserve)

    def has_room(self, extra_bytes: int) -> bool:
        """Whether a batch of new specs may be taken on: never at the price of room for the records that end them."""
        if not self.reserved:
            return False
        if extra_bytes < RESERVE_BYTES // 4:
            return True
        stats = os.statvfs(self._directory)
        return stats.f_bavail * stats.f_frsize > 4 * extra_bytes + RESERVE_BYTES
