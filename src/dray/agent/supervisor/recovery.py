"""After the death of a supervisor: stop what it left running and settle what its journal leaves open.

Runs once, before the socket exists. Never guesses: without a `started` record user code never ran; with one, the
process is recognised by pid, start time and boot, or left alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .attempt import NO_EXIT_CODE, make_result
from .identity import find_orphans, kill_exactly
from .output import STREAMS, list_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cgroup import Groups
    from .journal import Record
    from .ledger import Entry, Ledger

GONE_WITHIN_S = 5.0
POLL_S = 0.01


class Recovery:
    def __init__(self, boot_id: str, alive_ticks: int, groups: Groups) -> None:
        self._boot_id = boot_id
        self._alive_ticks = alive_ticks
        self._groups = groups

    def settle(self, ledger: Ledger, output_directory: Callable[[str], str]) -> list[Record]:
        """Exit records for all that was left open; what still ran is dead when this returns."""
        left_open = [entry for entry in ledger.entries.values() if entry.exit is None]
        stubborn = self.stop_orphans([entry.started for entry in left_open if entry.started is not None])
        return [self._exit_record(entry, stubborn, output_directory(entry.uid)) for entry in left_open]

    def _exit_record(self, entry: Entry, stubborn: set[int], directory: str) -> Record:
        if entry.started is None:
            result = make_result(
                "failed", NO_EXIT_CODE, 0, "lost_unstarted", "the supervisor died before it started this"
            )
        else:
            error = "the supervisor died while this ran; what it had started was stopped"
            if entry.started["boot"] != self._boot_id:
                error = "the worker was restarted while this ran"
            elif entry.started["pid"] in stubborn:
                error += f", but pid {entry.started['pid']} has not gone yet"
            result = make_result("failed", NO_EXIT_CODE, 0, "lost", error)
        result["usage"] = {"wall_s": 0.0, "cpu_s": 0.0, "max_rss_bytes": 0}
        segments = {name: list_segments(directory, name) for name in STREAMS}
        result["out"] = {name: (sum(found[-1]) if found else 0) for name, found in segments.items()}
        return {"k": "exit", "uid": entry.uid, "exit": result}

    def stop_orphans(self, started: list[Record]) -> set[int]:
        """Kill the sessions of these records; returns the leaders of those that would not go in time."""
        pending = [record for record in started if record["boot"] == self._boot_id]
        deadline = time.monotonic() + GONE_WITHIN_S
        while pending:
            pending = [record for record in pending if self._kill_left(record)]
            if not pending or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        return {record["pid"] for record in pending}

    def _kill_left(self, record: Record) -> bool:
        """True while something of this session is alive."""
        left = find_orphans(record["pid"], record["start"], self._alive_ticks)
        kill_exactly(left)
        if not record.get("group"):
            return bool(left)
        group = self._groups.open(record["group"])
        group.kill_all()
        return bool(left) or not group.remove()
