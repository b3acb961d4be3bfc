"""What this worker gets ready ahead of time, on a hint of its hub: one thing after another, while no task waits.

Pure. A hint is no promise: few are kept, the oldest are dropped, and whatever stands in the way of a task is put off
until that has what it needs. Surprising rule: an environment that is being built goes on when a task comes that needs
the very same one, since the task waits for that build then; all else is stopped at once, and what was fetched of it
stays.
"""

from __future__ import annotations

from typing import NamedTuple

from dray.wire.messages.hub import PrewarmHint

MOST = 4
# The hub hears all of it again now and then: another may lead by then.
TOLD_EVERY = 6


class Warm(NamedTuple):
    """Get this ready at leisure, for a user's account: a snapshot, or an environment."""

    snapshot_id: str
    sha: str
    environment: str
    user: str


class Cool(NamedTuple):
    """Stop with what is being got ready; what is there of it stays."""


class Prewarming:
    """Of one agent. `have`: what is ready here, in the words of the hub's tokens; its shell keeps it so."""

    def __init__(self) -> None:
        self.have: tuple[str, ...] = ()
        self._told: tuple[str, ...] | None = None
        self._beats = 0
        self._waiting: dict[Warm, None] = {}
        self._now: Warm | None = None
        # Attempts that wait for something to be brought.
        self._busy: dict[str, str] = {}

    def hinted(self, hint: PrewarmHint) -> list[Warm | Cool]:
        """A task may soon need something here, or does not need it any more."""
        steps = [
            Warm(hint.snapshot_id, hint.snapshot_sha, "", hint.user) if hint.snapshot_id else None,
            Warm("", "", hint.environment, hint.user) if hint.environment else None,
        ]
        for step in filter(None, steps):
            self._waiting.pop(step, None)
            if not hint.over and step != self._now:
                self._waiting[step] = None
        while len(self._waiting) > MOST:
            del self._waiting[next(iter(self._waiting))]
        if hint.over and self._now in steps:
            return self._stop(again=False)
        return self._go_on()

    def began(self, uid: str, environment: str) -> list[Warm | Cool]:
        """A task waits for what it needs: all else has time."""
        self._busy[uid] = environment
        if self._now is None or (self._now.environment and self._now.environment == environment):
            return []
        return self._stop(again=True)

    def ended(self, uid: str) -> list[Warm | Cool]:
        """It has that, or has gone."""
        self._busy.pop(uid, None)
        return self._go_on()

    def warmed(self, step: Warm) -> list[Warm | Cool]:
        """Something is ready, or cannot be got: then whoever needs it will hear why."""
        if step == self._now:
            self._now = None
        return self._go_on()

    def registering(self) -> None:
        """A hub knows nothing yet of what is here."""
        self._told = None

    def tell(self) -> dict[str, list[str]]:
        """What a heartbeat says of it: all there is, where that is news or has not been said for a while."""
        self._beats += 1
        if self.have == self._told and self._beats < TOLD_EVERY:
            return {}
        if not self.have and not self._told:
            return {}
        self._told, self._beats = self.have, 0
        return {"warm": list(self.have)}

    def _go_on(self) -> list[Warm | Cool]:
        if self._now is not None or self._busy or not self._waiting:
            return []
        self._now = next(iter(self._waiting))
        del self._waiting[self._now]
        return [self._now]

    def _stop(self, again: bool) -> list[Warm | Cool]:
        stopped, self._now = self._now, None
        if again and stopped is not None:
            self._waiting = {stopped: None, **self._waiting}
        return [Cool(), *self._go_on()]
