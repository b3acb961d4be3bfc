"""Whether this worker can start work. Pure: who tries, and what is told to the hub, is decided by these values.

A worker that finds that it cannot start something says so, is given nothing, and tries a start of its own from time to
time, ever more rarely. Surprising rule: after a trial that went well it asks for one task only, until one has started:
what stood in the way of a task need not stand in the way of a trial.

And how long ago it said what the hub has surely heard: the hub gives a silent worker's tasks to others, and counts from
the last word that reached it, so a lease runs from when the newest message was sent that the hub has answered.
"""

from __future__ import annotations

UNLIMITED_CREDIT = 1 << 20
FIRST_MS, LONGEST_MS = 1000, 30_000
# After so long without trouble what went wrong once is forgotten, though nothing has started since.
TRIAL_MS = 10_000
REPEAT_MS = 10_000
PING_MS = 2000
# Somebody who looks so rarely has been stopped himself: what he waits for may lie before his door.
LATE_MS = 5000
NO_ANSWER = "its supervisor does not answer"


class Readiness:
    """`reason`: why nothing can be started, empty while something can. `trial`: it is not yet known whether it can.

    `count` is the number of the newest trial start: what became of earlier ones is no news.
    """

    def __init__(self, within_ms: int) -> None:
        self.within_ms = within_ms
        self.reason = ""
        self.trial = False
        self._wait_ms = FIRST_MS
        self._since_ms = 0
        self._look_ms = 0
        self._probed_ms = 0
        self._doubted = False
        self._pinged_ms = 0
        self._awaited = False
        self._told_ms = 0
        self._again = False
        self._ticked_ms = 0
        self.count = 0

    @property
    def credits(self) -> int:
        """How many further tasks are asked for."""
        if self.reason:
            return 0
        return 1 if self.trial else UNLIMITED_CREDIT

    def troubled(self, reason: str, now_ms: int) -> bool:
        """Something could not be started; True where that is news."""
        news, self.reason = reason != self.reason, reason
        if not self._look_ms:
            self._put_off(now_ms)
        return news

    def _put_off(self, now_ms: int) -> None:
        self._look_ms, self._wait_ms = now_ms + self._wait_ms, min(2 * self._wait_ms, LONGEST_MS)

    def doubt(self) -> None:
        """Something did not come up, and it is not known whose fault that is: try."""
        self._doubted = True

    def started(self) -> bool:
        """Something has started; True where the hub may send more from now on."""
        if self.reason:
            return False
        news, self.trial, self._wait_ms = self.trial, False, FIRST_MS
        return news

    def probed(self, fault: str, now_ms: int) -> bool:
        """A trial start has ended, with a reason where it could not be made; True where that is news."""
        self._probed_ms, self._doubted = 0, False
        if fault:
            self._look_ms = 0
            return self.troubled(fault, now_ms)
        if not self.reason:
            return False
        self.reason, self.trial, self._since_ms, self._look_ms = "", True, now_ms, 0
        return True

    def attached(self, now_ms: int) -> None:
        """A supervisor is there: what was asked of another will not be answered."""
        self._awaited, self._probed_ms = False, 0
        if self.reason:
            self._look_ms = now_ms

    def answered(self) -> None:
        """The supervisor lives."""
        self._awaited = False

    # --- time ---------------------------------------------------------------------------------------------------------

    def is_late(self, now_ms: int) -> bool:
        """Whether whoever asks was itself away: then nobody's silence means anything."""
        late = bool(self._ticked_ms) and now_ms - self._ticked_ms > LATE_MS
        self._ticked_ms = now_ms
        if late:
            self._pinged_ms = self._probed_ms = 0
            self._awaited = False
        return late

    def takes_long(self, now_ms: int) -> bool:
        """Whether the supervisor has not answered for too long."""
        return self._awaited and now_ms - self._pinged_ms > self.within_ms

    def pings(self, now_ms: int) -> bool:
        """Whether the supervisor is to be asked now whether it is there."""
        if self._awaited or now_ms - self._pinged_ms < PING_MS:
            return False
        self._awaited, self._pinged_ms = True, now_ms
        return True

    def tries(self, now_ms: int) -> int:
        """The number of the trial start that is to be made now; 0 for none."""
        if self._probed_ms and now_ms - self._probed_ms > 2 * self.within_ms:
            self._probed_ms = 0
        due = self._doubted or (bool(self.reason) and now_ms >= self._look_ms)
        if self._probed_ms or not due:
            return 0
        self._probed_ms = now_ms
        self.count += 1
        return self.count

    def repeats(self, now_ms: int) -> bool:
        """Whether the hub is to be told once more how it stands: the first word may be lost, and work waits for it."""
        if self.trial and now_ms - self._since_ms >= TRIAL_MS:
            self.trial = False
            self.told(now_ms)
            return True
        unsettled = bool(self.reason) or self.trial
        if not (unsettled or self._again) or now_ms - self._told_ms < REPEAT_MS:
            return False
        self._told_ms, self._again = now_ms, unsettled
        return True

    def told(self, now_ms: int) -> None:
        """The hub was told how it stands."""
        self._told_ms, self._again = now_ms, True


class Contact:
    """Heartbeats have numbers, which their acks repeat: one ack that is lost must not shift all that follow."""

    def __init__(self, first: int = 0) -> None:
        self.heard_ms = 0
        self.beat = first
        self._registering_ms = 0
        self._unanswered: dict[int, int] = {}

    def registering(self, now_ms: int) -> None:
        """A registration leaves."""
        self._registering_ms = now_ms

    def registered(self) -> None:
        """The hub has answered the registration."""
        self.heard_ms = max(self.heard_ms, self._registering_ms)

    def beating(self, now_ms: int) -> None:
        """A heartbeat leaves, as number `beat`."""
        self.beat += 1
        self._unanswered[self.beat] = now_ms

    def beat_answered(self, beat: int) -> bool:
        """Whether that tells anything new. An earlier hub names no number: it means the oldest then, or a later one."""
        beat = beat or next(iter(self._unanswered), 0)
        sent_ms = self._unanswered.get(beat)
        if sent_ms is None:
            return False
        self.heard_ms = max(self.heard_ms, sent_ms)
        self._unanswered = {number: at_ms for number, at_ms in self._unanswered.items() if number > beat}
        return True

    def lost(self) -> None:
        """The session is gone, and every answer with it."""
        self._unanswered.clear()
