"""After the death of a supervisor: stop what it left running and settle what its journal leaves open.

Runs once, before the socket exists. Never guesses: without a `starting` or `started` record user code never ran; with
the latter the process is recognised by pid, start time and boot, with the former alone by its marks, or left alone. No
child of the dead supervisor is still before its exec by now, and so without its marks: until then it shares the lock
on the home, which is ours.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dray.agent.supervisor.attempts.attempt import NO_EXIT_CODE, make_result
from dray.agent.supervisor.processes.identity import find_orphans, kill_exactly
from dray.agent.supervisor.processes.marks import find_marked
from dray.agent.supervisor.processes.output import STREAMS, list_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from dray.agent.supervisor.processes.cgroup import Groups
    from dray.agent.supervisor.records.journal import Record
    from dray.agent.supervisor.records.ledger import Entry, Ledger

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
        begun = [
            record
            for entry in left_open
            for record in (entry.starting, entry.started, *entry.adopted)
            if record is not None
        ]
        stubborn = self.stop_orphans(begun)
        return [self._exit_record(entry, stubborn, output_directory(entry.uid)) for entry in left_open]

    def _exit_record(self, entry: Entry, stubborn: set[str], directory: str) -> Record:
        begun = entry.starting or entry.started
        if begun is None:
            result = make_result(
                "failed", NO_EXIT_CODE, 0, "lost_unstarted", "the supervisor died before it started this"
            )
        else:
            error = "the supervisor died while this ran; what it had started was stopped"
            if begun["boot"] != self._boot_id:
                error = "the worker was restarted while this ran"
            elif entry.uid in stubborn:
                pid = f"pid {entry.started['pid']}" if entry.started is not None else "it"
                error += f", but {pid} has not gone yet"
            result = make_result("failed", NO_EXIT_CODE, 0, "lost", error)
        result["usage"] = {"wall_s": 0.0, "cpu_s": 0.0, "max_rss_bytes": 0}
        segments = {name: list_segments(directory, name) for name in STREAMS}
        result["out"] = {name: (sum(found[-1]) if found else 0) for name, found in segments.items()}
        return {"k": "exit", "uid": entry.uid, "exit": result}

    def stop_orphans(self, begun: list[Record]) -> set[str]:
        """Kill what these `starting` and `started` records left; returns the attempts that would not go in time."""
        pending = [record for record in begun if record["boot"] == self._boot_id]
        deadline = time.monotonic() + GONE_WITHIN_S
        while pending:
            left = self._kill_marked([_as_start(record) for record in pending if "token" in record])
            left |= {r["uid"] for r in pending if r["k"] != "starting" and self._kill_left(r)}
            pending = [record for record in pending if record["uid"] in left]
            if not pending or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        return {record["uid"] for record in pending}

    def _kill_marked(self, starts: list[Record]) -> set[str]:
        """The attempts of which something is alive."""
        found = find_marked(starts) if starts else {}
        for left in found.values():
            kill_exactly(left)
        return set(found)

    def _kill_left(self, record: Record) -> bool:
        """True while something of this session is alive."""
        left = find_orphans(record["pid"], record["start"], self._alive_ticks)
        kill_exactly(left)
        if not record.get("group"):
            return bool(left)
        group = self._groups.open(record["group"])
        group.kill_all()
        return bool(left) or not group.remove()


def _as_start(record: Record) -> Record:
    """A `started` record as one of a start to come: its descendants carry the same mark."""
    return record if record["k"] == "starting" else {"pipes": [], "ticks": record["start"], **record}
