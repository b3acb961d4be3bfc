"""What tasks say of themselves through their sessions: read, kept as the latest word, and spelled for the hub. Pure.

Tasks are strangers: whatever they send is bounded here. Progress goes to the hub at most once a second per attempt,
the latest word only; a save goes at once, unless the last one is younger than that. Surprising rule: every message
repeats the last save, so that one which was lost on the way is made good by the next.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from dray.core.model.bounds import MAX_STEP
from dray.wire.messages.worker import MAX_NOTE

KINDS = ("progress", "saved", "watch", "finished", "yield", "resume")
TELL_EVERY_MS = 1000

Words = dict[str, Any]


class Said(msgspec.Struct):
    """The latest words of one attempt. `untold`: the hub has not heard all of them; `told_ms` is when it heard any,
    `saved_told_ms` when it heard of a save.
    """

    step: int | None = None
    fraction: float | None = None
    note: str | None = None
    saved_step: int | None = None
    saved_at_ms: int = 0
    heeds: bool = False
    finished: bool = False
    untold: bool = False
    told_ms: int | None = None
    told_step: int | None = None
    saved_told_ms: int | None = None

    def hear(self, words: Words, now_ms: int) -> None:
        """Take in what `read_words` has let through."""
        progress, saved = words.get("progress"), words.get("saved")
        if progress is not None:
            for name, value in progress.items():
                setattr(self, name, value)
            self.untold = True
        if saved is not None and (self.saved_step is None or saved["step"] > self.saved_step):
            self.saved_step, self.saved_at_ms = saved["step"], now_ms
            self.untold = True
        self.finished = self.finished or "finished" in words

    def is_due(self, now_ms: int) -> bool:
        """Whether the hub may hear of it again."""
        since = self.told_ms if self.saved_step == self.told_step else self.saved_told_ms
        return self.untold and (since is None or now_ms - since >= TELL_EVERY_MS)

    def told(self, now_ms: int) -> None:
        """The hub hears all of it now."""
        self.untold, self.told_ms = False, now_ms
        if self.saved_step != self.told_step:
            self.told_step, self.saved_told_ms = self.saved_step, now_ms

    def repeat(self) -> None:
        """A new session: the hub may have heard none of it."""
        self.told_ms = self.told_step = self.saved_told_ms = None
        said = (self.step, self.fraction, self.note, self.saved_step)
        self.untold = any(word is not None for word in said)

    def payload(self, task_id: str, uid: str, now_ms: int) -> dict[str, Any]:
        """Spell it as `job_progress`."""
        said: dict[str, Any] = {"step": self.step, "fraction": self.fraction, "note": self.note}
        if self.saved_step is not None:
            said |= {"saved_step": self.saved_step, "saved_age_s": (now_ms - self.saved_at_ms) / 1000}
        said = {name: value for name, value in said.items() if value is not None}
        return {"task_id": task_id, "attempt": uid, **said}


def read_object(line: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Read one line as an object; raises ValueError with words for whoever wrote it."""
    try:
        message = json.loads(bytes(line))
    except (ValueError, RecursionError):
        raise ValueError("a line is one JSON object, this one is not JSON") from None
    if not isinstance(message, dict):
        raise ValueError(f"a line is one JSON object, not {type(message).__name__}")
    return message


def read_words(message: dict[str, Any]) -> Words:
    """Check what a task said; raises ValueError naming the place. Fields that are not known are left out."""
    words = {kind: message[kind] for kind in KINDS if kind in message}
    if not words:
        raise ValueError(f"nothing known in this line: say one of hello, {', '.join(KINDS)}")
    for kind, body in words.items():
        if not isinstance(body, dict):
            raise ValueError(f"{kind} holds an object, not {type(body).__name__}")
    if "progress" in words:
        words["progress"] = _read_progress(words["progress"])
    if "saved" in words:
        words["saved"] = {"step": _read_step("saved.step", words["saved"].get("step"))}
    return words


def _read_progress(body: dict[str, Any]) -> dict[str, Any]:
    progress: dict[str, Any] = {}
    if body.get("step") is not None:
        progress["step"] = _read_step("progress.step", body["step"])
    fraction = body.get("fraction")
    if fraction is not None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or math.isnan(fraction):
            raise ValueError(f"progress.fraction is {str(fraction)[:40]!r}: give a number from 0 to 1")
        progress["fraction"] = float(min(1, max(0, fraction)))
    note = body.get("note")
    if note is not None:
        if not isinstance(note, str):
            raise ValueError(f"progress.note holds text, not {type(note).__name__}")
        progress["note"] = note.encode(errors="replace").decode()[:MAX_NOTE]
    return progress


def _read_step(place: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_STEP:
        raise ValueError(f"{place} is {str(value)[:40]!r}: give a whole number, 0 or more")
    return value
