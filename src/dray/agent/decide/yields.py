"""Slots that tasks gave up while they wait on others, and how they get them back. Pure.

A task says that it yields, the hub hears of it; when it wants to go on it waits until the hub has room. Both words are
repeated until they are certain to have been heard: a resume until it is granted, a yield with every new session.
"""

from __future__ import annotations

import msgspec

from dray.agent.decide.effects import Effect, Grant, Tell
from dray.agent.decide.words import Words

REPEAT_MS = 1000


class Yielded(msgspec.Struct):
    """One attempt without its slot. `resuming`: it wants it back, asked for at `asked_ms`."""

    task_id: str
    resuming: bool = False
    asked_ms: int = 0


class Yields:
    """All attempts of one agent that have given their slots up."""

    def __init__(self) -> None:
        self._held: dict[str, Yielded] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._held

    def said(self, uid: str, task_id: str, words: Words, now_ms: int) -> list[Effect]:
        """A task gives its slot up, or wants it back; one that never gave it up has it."""
        effects: list[Effect] = []
        if "yield" in words and uid not in self._held:
            self._held[uid] = Yielded(task_id)
            effects.append(self._tell("job_yield", uid))
        if "resume" in words:
            found = self._held.get(uid)
            if found is None:
                effects.append(Grant(uid))
            else:
                found.resuming, found.asked_ms = True, now_ms
                effects.append(self._tell("job_resume", uid))
        return effects

    def granted(self, uid: str) -> list[Effect]:
        """The hub gives a slot back."""
        found = self._held.get(uid)
        if found is None or not found.resuming:
            return []
        del self._held[uid]
        return [Grant(uid)]

    def ended(self, uid: str) -> None:
        """Forget an attempt: what it gave up is nobody's any more."""
        self._held.pop(uid, None)

    def repeat_all(self, now_ms: int) -> list[Effect]:
        """A new session: the hub may have heard of none of it."""
        effects: list[Effect] = []
        for uid, found in self._held.items():
            effects.append(self._tell("job_yield", uid))
            if found.resuming:
                found.asked_ms = now_ms
                effects.append(self._tell("job_resume", uid))
        return effects

    def repeat_late(self, now_ms: int) -> list[Effect]:
        """Ask again for what was not granted in time."""
        effects: list[Effect] = []
        for uid, found in self._held.items():
            if found.resuming and now_ms - found.asked_ms >= REPEAT_MS:
                found.asked_ms = now_ms
                effects.append(self._tell("job_resume", uid))
        return effects

    def _tell(self, kind: str, uid: str) -> Tell:
        return Tell(kind, {"task_id": self._held[uid].task_id, "attempt": uid}, acked=False)
