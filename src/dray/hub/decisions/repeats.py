"""Jobs that are there already under an id that is asked for again: since when, how they differ, what that comes to.

An idempotency key is a retry of the very same request and is not judged here. An id is a name that somebody chose, and
may have chosen before for something else: whoever asks says whether the same job again is fine (`same`), a mistake
(`refuse`), or reason to leave it as it is and go on with the others (`keep`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from dray.core.model.records.records import Job
from dray.core.model.specs.spec import JobSpec, spec_document, unpack_spec
from dray.errors import KeyReused, Problem
from dray.hub.access.caller import Caller
from dray.hub.rows import Rows

MODES = ("same", "refuse", "keep")
MOST_TOLD = 6
_LONG = 60


class Repeats:
    """What one submit does about ids that are taken. `kept` are jobs left as they are, each with words for people."""

    def __init__(self, mode: str = "same") -> None:
        self.mode = mode
        self.kept: dict[str, str] = {}

    def find(self, rows: Rows, caller: Caller, specs: Sequence[JobSpec]) -> tuple[str, ...] | None:
        """The ids where all jobs are there already, None where some are to be made. Raises what may not be."""
        self.kept = {}
        there = [(spec, job) for spec in specs if spec.id and (job := rows.job(spec.id)) is not None]
        for spec, job in there:
            if not caller.sees(job.user) or (self.mode == "same" and not is_same(job, spec)):
                raise KeyReused(f"there is a job {spec.id!r} already, with another spec: choose another id")
        if not there:
            return None
        if self.mode == "refuse":
            told = [
                Problem("id" if len(specs) == 1 else spec.id, f"{spec.id} exists {_tell(job, spec)}")
                for spec, job in there
            ]
            raise KeyReused(f"nothing was submitted, the id is taken: {told[0].what}", told)
        if len(there) < len(specs) and self.mode == "same":
            raise KeyReused(
                f"job {there[0][0].id!r} of the batch exists already while others do not: a batch is all or none"
            )
        if self.mode == "keep":
            self.kept = {spec.id: f"it exists {_tell(job, spec)}: left as it is" for spec, job in there}
        return tuple(spec.id for spec in specs) if len(there) == len(specs) else None


def is_same(job: Job, spec: JobSpec) -> bool:
    """Whether a submit says what an earlier one said; what was edited since is not its business."""
    submitted = unpack_spec(job.original or job.spec)
    return submitted == msgspec.structs.replace(spec, id="") and job.user == spec.user_id


def _tell(job: Job, spec: JobSpec) -> str:
    """`since 2026-11-15 10:02:25 UTC (running), with the same spec`."""
    since = datetime.fromtimestamp(job.submitted_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    before = spec_document(unpack_spec(job.original or job.spec)) | {"user_id": job.user}
    now = spec_document(spec)
    changed = [
        _tell_field(field, before.get(field), now.get(field))
        for field in dict.fromkeys([*now, *before])
        if field != "id" and before.get(field) != now.get(field)
    ]
    if len(changed) > MOST_TOLD:
        changed[MOST_TOLD:] = [f"and {len(changed) - MOST_TOLD} more"]
    differs = f"which differs: {'; '.join(changed)}" if changed else "with the same spec"
    return f"since {since} ({job.state.value}), {differs}"


def _tell_field(field: str, before: Any, now: Any) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [key for key in dict.fromkeys([*now, *before]) if before.get(key) != now.get(key)]
        return f"{field} ({', '.join(map(str, keys[:MOST_TOLD]))})"
    return f"{field} {_short(now)}, was {_short(before)}"


def _short(value: Any) -> str:
    text = "not given" if value is None else " ".join(value) if _is_words(value) else str(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
