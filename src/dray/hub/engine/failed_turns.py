"""Turns that failed: what is to blame, what is not tried again, and what is left out for a while.

Owned by whoever runs one engine after another in a process, and fed from the reports of earlier ones. A request whose
taking raised is to blame by itself. Where a turn's own work failed nobody is, and the next engine goes carefully for a
while: one request per turn, each after a turn without any, so that a second failure names the request or clears them
all. Work of the turn that fails again without a request, or over another one, is left out, for longer each time: a hub
that records results and answers questions but places nothing, and says so, is better than one that comes up and falls
down for ever.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from dray.core.model.units import format_seconds
from dray.core.scheduling.passes.turn import CALLS, PASS, TIMERS
from dray.errors import DrayError, InternalFault
from dray.hub.engine.fault_reports import Report, Reports
from dray.hub.engine.turns import RECORD, Origin, Request, TurnFailed

REMEMBERED_S, SUSPECTED_S = 3600.0, 60.0
CAREFUL_S = 10.0
# So many different requests of one kind from one caller, and all of that kind are refused for a while.
STRIKES, BANNED_S = 3, 600.0
AGAIN_S = 600.0
SKIP_S, MOST_SKIP_S = 30.0, 3600.0
LIVES, LIVES_S = 8, 60.0
_MEANING = {
    PASS: "no new work is placed",
    TIMERS: "nothing is decided by time: no loss, no limit, no timeout",
    CALLS: "no function calls are given out",
    RECORD: "nothing is placed, decided by time or given out",
}


class _Suspect:
    """What was refused of one kind from one caller."""

    def __init__(self) -> None:
        self.digests: dict[str, tuple[float, str]] = {}
        self.banned_until = 0.0


class _Stage:
    """How often the turn's own work of one kind failed, and until when it is left out."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.blamed: dict[tuple[str, str, str], float] = {}
        self.skipped_until = 0.0
        self.skip_s = SKIP_S
        self.report = ""

    def recent(self, now: float) -> list[float]:
        """When it failed without anybody to blame, as far as that still counts."""
        return [at for at in self.times if now - at < AGAIN_S + self.skip_s]


class Setbacks:
    """What one process remembers of its failed turns. Costs a truth test per request while nothing has failed."""

    def __init__(self, reports: Reports, now: Callable[[], float] = time.monotonic) -> None:
        self.reports, self._now = reports, now
        self._suspects: dict[tuple[str, str], _Suspect] = {}
        self._stages: dict[str, _Stage] = {}
        self._lives: list[float] = []
        self._careful_until = 0.0
        self._recall()

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def _recall(self) -> None:
        """What an earlier process was broken by is not tried again by this one either."""
        wall = datetime.now(UTC)
        for report in self.reports.open():
            if not report.digest:
                continue
            age_s = (wall - _read_time(report.last_at, wall)).total_seconds()
            if age_s < REMEMBERED_S:
                self._remember(report, self._now() + REMEMBERED_S - max(0.0, age_s))

    def _remember(self, report: Report, until: float) -> None:
        suspect = self._suspects.setdefault((report.kind, report.who), _Suspect())
        suspect.digests[report.digest] = (until, report.id)

    # --- requests ---------------------------------------------------------------------------------------------------

    def refuse(self, origin: Origin) -> None:
        """Raise where this request, or one just like it, has broken a turn before."""
        suspect = self._suspects.get((origin.kind, origin.who))
        if suspect is None:
            return
        now = self._now()
        suspect.digests = {digest: kept for digest, kept in suspect.digests.items() if kept[0] > now}
        if not suspect.digests:
            del self._suspects[origin.kind, origin.who]
            return
        _, report_id = suspect.digests.get(digest_of(origin), (0.0, ""))
        if report_id:
            raise refusal(origin.kind, report_id, "it was not tried again")
        if suspect.banned_until > now:
            *_, (_, last) = suspect.digests.values()
            raise refusal(
                origin.kind, last, f"it was the {STRIKES}. of its kind: all are refused for a while"
            )

    def blame(self, request: Request, failed: TurnFailed) -> InternalFault:
        """Hold a failed turn against one of its requests; gives what to answer it."""
        origin = request.origin
        digest = digest_of(origin) if request.body is not None else ""
        what = f"a request of the kind {origin.kind} broke the hub's turn ({failed.stage}): it was refused"
        report = self.reports.file(origin.kind, what, origin.who, failed.cause, digest)
        span_s = REMEMBERED_S
        if failed.request is None:
            # Only by circumstance: what it set off may have been broken before.
            span_s = min(REMEMBERED_S, SUSPECTED_S * 2.0 ** (report.count - 1))
        if digest:
            now = self._now()
            self._remember(report, now + span_s)
            suspect = self._suspects[origin.kind, origin.who]
            if len(suspect.digests) >= STRIKES:
                suspect.banned_until = now + BANNED_S
        rest = f"nothing of it was recorded, and it is not tried again for {format_seconds(span_s)}"
        return refusal(origin.kind, report.id, rest)

    # --- the turn's own work ----------------------------------------------------------------------------------------

    def suspect(self, request: Request, failed: TurnFailed) -> InternalFault | None:
        """Blame the only request of a turn whose own work failed; None where that work fails over others as well, so
        that none of them is to blame.
        """
        stage = self._stages.setdefault(failed.stage, _Stage())
        origin, now = request.origin, self._now()
        mark = (origin.kind, origin.who, digest_of(origin))
        others = any(at > now - AGAIN_S and one != mark for one, at in stage.blamed.items())
        if others or stage.recent(now):
            for kind, who, digest in stage.blamed:
                if (known := self._suspects.get((kind, who))) is not None:
                    known.digests.pop(digest, None)
            stage.blamed.clear()
            stage.times.append(now)
            self.note(failed, 0)
            return None
        stage.blamed[mark] = now
        return self.blame(request, failed)

    @property
    def careful(self) -> bool:
        """Whether requests are to be taken one by one."""
        return self._now() < self._careful_until

    def note(self, failed: TurnFailed, requests: int) -> None:
        """A turn failed with nobody to blame."""
        now = self._now()
        self._careful_until = now + CAREFUL_S
        what = (
            f"the hub's turn failed ({failed.stage}): {_MEANING.get(failed.stage, '')} until it has reloaded"
        )
        report = self.reports.file(failed.stage, what, "", failed.cause)
        if requests:
            return
        stage = self._stages.setdefault(failed.stage, _Stage())
        stage.times = [*stage.recent(now), now]
        stage.report = report.id
        if len(stage.times) > 1:
            stage.skipped_until = now + stage.skip_s
            stage.skip_s = min(MOST_SKIP_S, 2 * stage.skip_s)

    def skipped(self) -> frozenset[str]:
        """What to leave out of a turn now."""
        if not self._stages:
            return frozenset()
        now = self._now()
        names = frozenset(name for name, stage in self._stages.items() if stage.skipped_until > now)
        # What cannot be spelled without anybody's request came from one of these.
        return names | {TIMERS, PASS, CALLS} if RECORD in names else names

    def complaints(self) -> list[str]:
        """Say what is left out, for the doctor."""
        now = self._now()
        return [
            f"{_MEANING.get(name, name)}: that work failed {len(stage.times)} times and is tried again in "
            f"{stage.skipped_until - now:.0f} s (report {stage.report})"
            for name, stage in self._stages.items()
            if stage.skipped_until > now
        ]

    def checks(self) -> list[dict[str, Any]]:
        """What the doctor is to show of it."""
        left_out, reports = self.complaints(), self.reports.open()
        told = ""
        if reports:
            told = f"{len(reports)} in {self.reports.folder}: remove a report once it is dealt with"
        return [
            {"name": "turns", "ok": not left_out, "detail": "; ".join(left_out)},
            {"name": "reports", "ok": not reports, "detail": told},
        ]

    def may_reload(self) -> bool:
        """Whether another engine may be started: one that falls at once, again and again, must not spin."""
        now = self._now()
        self._lives = [at for at in self._lives if now - at < LIVES_S] + [now]
        return len(self._lives) <= LIVES


def refusal(kind: str, report_id: str, rest: str) -> InternalFault:
    """What a caller learns of a request that broke a turn."""
    return InternalFault(
        f"the hub failed on this request ({kind}): {rest}. `dray doctor` shows the report {report_id} to an admin"
    )


def digest_of(origin: Origin) -> str:
    """Tell a request from others of its kind and caller."""
    return hashlib.sha256(_encode((origin.kind, origin.who, origin.body))).hexdigest()


def _encode(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value, enc_hook=repr)
    except (OverflowError, ValueError, TypeError, DrayError):
        return repr(value).encode(errors="replace")


def _read_time(text: str, otherwise: datetime) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return otherwise
