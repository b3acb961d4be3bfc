"""Reports of what went wrong inside the hub, one small file each under HOME/reports, for a person to read and remove.

Owns the folder and the words; decides nothing. A report names the kind of thing that failed, who asked for it and where
in the code it happened, and never a value: the text of an unforeseen error may hold a command, an argument or a secret,
so only its type is kept. The same thing going wrong again raises a count instead of filling the disk.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dray.errors import DrayError
from dray.hub.access.tokens import write_private

MOST = 100
FRAMES = 20
_log = logging.getLogger("dray.hub.engine.fault_reports")


class Report(msgspec.Struct, kw_only=True):
    """One report. `digest` names the very request that failed, so that it is not tried again."""

    id: str
    at: str
    kind: str
    what: str
    who: str = ""
    digest: str = ""
    error: str = ""
    trace: tuple[str, ...] = ()
    count: int = 1
    last_at: str = ""


class Reports:
    """The reports of one home, in memory as on the disk; oldest first."""

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.folder, self._now = folder, now
        self.filed: dict[str, Report] = {report.id: report for report in read_reports(folder)}
        self._unwritten: set[str] = set()

    def file(
        self, kind: str, what: str, who: str = "", error: BaseException | None = None, digest: str = ""
    ) -> Report:
        """Keep a report and say so in the log; never fails, whatever the disk does."""
        at = self._now().isoformat(timespec="seconds")
        trace, name = (tuple(trace_of(error)), name_of(error)) if error is not None else ((), "")
        marks = "|".join((kind, what, who, name, digest, trace[-1] if trace else ""))
        report_id = hashlib.sha256(marks.encode(errors="replace")).hexdigest()[:10]
        known = self.filed.pop(report_id, None)
        report = Report(
            id=report_id,
            at=known.at if known is not None else at,
            kind=kind,
            what=what,
            who=who,
            digest=digest,
            error=name,
            trace=trace,
            count=known.count + 1 if known is not None else 1,
            last_at=at,
        )
        self.filed[report_id] = report
        self._write(report)
        _log.error("%s (report %s)", what, report_id, exc_info=error, extra={"who": who, "kind": kind})
        return report

    def open(self) -> list[Report]:
        """Give the reports that nobody has removed yet, newest first."""
        self.filed = {
            key: report
            for key, report in self.filed.items()
            if key in self._unwritten or self._path(key).exists()
        }
        return list(self.filed.values())[::-1]

    def _write(self, report: Report) -> None:
        while len(self.filed) > MOST:
            oldest = next(iter(self.filed))
            del self.filed[oldest]
            self._path(oldest).unlink(missing_ok=True)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._path(report.id), msgspec.json.format(msgspec.json.encode(report)))
            self._unwritten.discard(report.id)
        except OSError as error:
            self._unwritten.add(report.id)
            _log.warning("a report cannot be written: %s", error.strerror)

    def _path(self, report_id: str) -> Path:
        return self.folder / f"{report_id}.json"


def read_reports(folder: Path) -> list[Report]:
    """Read what is there, oldest first; a file that is no report is left alone."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            report = msgspec.json.decode(path.read_bytes(), type=Report)
        except (OSError, msgspec.MsgspecError):
            continue
        if report.id == path.stem:
            found.append(report)
    return sorted(found, key=lambda report: report.last_at)


def name_of(error: BaseException) -> str:
    """Name an error without what it says, unless dray said it."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, DrayError) else name


def trace_of(error: BaseException) -> list[str]:
    """Say where an error came from: files and lines, no values."""
    lines = []
    for frame in traceback.extract_tb(error.__traceback__)[-FRAMES:]:
        parts = Path(frame.filename).parts
        place = "/".join(parts[parts.index("dray") :] if "dray" in parts else parts[-2:])
        lines.append(f"{place}:{frame.lineno} in {frame.name}")
    return lines
