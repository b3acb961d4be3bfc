"""When a site wants to be told that something is wrong: rules with two thresholds, so that nothing flutters."""

from __future__ import annotations

import msgspec

# What is measured, and of what each has one: a worker, a queue, the hub, a job.
KINDS = {
    "worker_away": "seconds since a worker that is not drained went away",
    "queue_wait": "seconds that the first of a queue has waited",
    "disk": "share of the hub's disk that is used, 0 to 1",
    "crash_loop": "failures of one task that is tried again and again",
    "failed_share": "share of attempts that failed, of those that ended within `window_s`, 0 to 1",
}


class AlarmRule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Raised once the measure was above `above` for `for_s`, over once it was at or below `below` for `for_s`.

    `below` under 0: the same as `above`. `queue`: that one alone. `least`: attempts that must have ended for a share to
    mean something.
    """

    kind: str
    above: float
    below: float = -1
    for_s: float = 0
    queue: str = ""
    window_s: float = 900
    least: int = 10

    @property
    def over_at(self) -> float:
        """Where it is over."""
        return self.below if self.below >= 0 else self.above
