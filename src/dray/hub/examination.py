"""What a home holds, looked at without a hub: for `dray doctor` when none runs, or none can.

Reads only, and only through read-only connections; a hub that runs is not disturbed. Every fault becomes a check with
words, never an exception: this is what people run when everything else has failed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from dray.core.model.units import format_bytes
from dray.errors import DrayError
from dray.hub.engine.fault_reports import read_reports
from dray.hub.store.base import Position
from dray.hub.store.space import free_bytes
from dray.hub.store.sqlite.errors import tell_unusable
from dray.hub.store.sqlite.opening import inspect
from dray.hub.store.witness import read_witness, witness_place

STORE = "hub.sqlite"
LITTLE_BYTES = 1 << 20
_COUNTS = "SELECT state, count(*) FROM jobs GROUP BY state ORDER BY state"


def examine_home(home: Path, store: str = "") -> dict[str, Any]:
    """Give checks and facts in the shape of the hub's own doctor; `store` is the database of this home, if any."""
    checks = [*_look_at_folder(home)]
    facts: dict[str, Any] = {}
    reports: list[Any] = []
    if checks[0]["ok"] or home.is_dir():
        checks += _look_at_database(home, store, facts) if store else _look_at_store(home / STORE, facts)
        found = read_reports(home / "reports")
        told = f"{len(found)} in {home / 'reports'}: remove a report once it is dealt with" if found else ""
        checks.append(_check("reports", not found, told))
        reports = [msgspec.to_builtins(report) for report in reversed(found)]
    sound = all(check["ok"] for check in checks)
    return {"ok": sound, "checks": checks, "facts": facts, "reports": reports}


def _check(name: str, ok: bool, detail: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}


def _look_at_folder(home: Path) -> Iterator[dict[str, Any]]:
    if not home.is_dir():
        yield _check("home", ok=False, detail=f"there is no folder {home}: `dray up` makes one")
        return
    writable = os.access(home, os.W_OK | os.X_OK)
    advice = f"{home} cannot be written to by this user: chown or chmod it, or mount its disk for writing"
    yield _check("home", writable, str(home) if writable else advice)
    free = free_bytes(home)
    told = f"{format_bytes(free)} free" + (
        "" if free >= LITTLE_BYTES else f": free space on the disk under {home}"
    )
    yield _check("disk", free >= LITTLE_BYTES, told)


def _look_at_store(path: Path, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    known = read_witness(path)
    if not path.exists():
        turns = known.seq if known is not None else 0
        missing = f"{path} is not there, and its witness knows of {turns} turns in it: put it back or restore a backup"
        yield _check("store", not turns, missing if turns else f"{path} is made at the first start")
        return
    try:
        found = inspect(path, "always")
    except DrayError as fault:
        yield _check("store", ok=False, detail=fault.message)
        yield from _count_jobs(path, facts)
        return
    except OSError as fault:
        yield _check("store", ok=False, detail=tell_unusable(path.parent, fault))
        return
    yield _check("store", ok=True, detail=f"whole: epoch {found.epoch}, turn {found.seq}")
    if known is not None:
        yield _compare(found, known)
    yield from _count_jobs(path, facts)


def _look_at_database(home: Path, store: str, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Who leads, how far it is, and how far this home knows it to have been. Writes nothing."""
    try:
        from dray.hub.store.postgres.examination import examine_database
    except ImportError as missing:
        told = f"{missing.name} is not installed here: pip install 'dray[postgres]'"
        yield _check("store", ok=False, detail=told)
        return
    try:
        found = examine_database(store)
    except DrayError as fault:
        yield _check("store", ok=False, detail=fault.message)
        return
    if found is None:
        yield _check("store", ok=True, detail="the tables are made at the first start")
        return
    leads = f"{found.holder} led last" if found.holder else "nobody leads"
    told = f"epoch {found.position.epoch}, turn {found.position.seq}, {leads}"
    yield _check("store", ok=True, detail=f"{found.shown}: {told}")
    known = read_witness(witness_place(home, found.store_id))
    if known is not None:
        yield _compare(found.position, known)
    facts |= {f"jobs {state}": count for state, count in found.counts.items()} or {"jobs": 0}


def _compare(found: Position, known: Position) -> dict[str, Any]:
    behind = found.epoch < known.epoch or found.seq < known.seq
    told = f"turn {known.seq} of epoch {known.epoch} was answered and is not in it: turns are lost, or it is a backup"
    return _check("witness", not behind, told if behind else "")


def _count_jobs(path: Path, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Say how much can be read; where the disk is read-only, without what is only in the write-ahead log."""
    told = ""
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        try:
            connection = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True)
            try:
                counts = {str(state): int(count) for state, count in connection.execute(_COUNTS)}
            finally:
                connection.close()
        except sqlite3.Error as error:
            told = str(error)
            continue
        facts |= {f"jobs {state}": count for state, count in counts.items()} or {"jobs": 0}
        if "immutable" in mode:
            yield _check(
                "jobs", ok=True, detail="read without the write-ahead log: the newest are not counted"
            )
        return
    yield _check("jobs", ok=False, detail=f"the list of jobs cannot be read: {told}")
