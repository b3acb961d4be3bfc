"""Deliberate bugs that only a rare coincidence shows, and the seeds that showed shy ones last.

Those seeds are asked first. Any change of the product may turn them into other histories: then all are asked again.
"""

from __future__ import annotations

from dray.sim.faults.mutants import Edit, Mutant

_KEPT = "dray.core.scheduling.reservations:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


SHY = (
    _one(
        "served-room-kept-again",
        "A job that got its room and waits on within the same millisecond has it kept once more.",
        _KEPT + "drop_stale",
        "waits = waits and kept.job_id not in served",
        "pass",
    ),
    _one(
        "preemptor-not-expected",
        "A promise counts on room that a preemptor will hold by then.",
        _KEPT + "Keeper.expect",
        "self._count(other.job_id, 1)",
        "pass",
    ),
    _one(
        "room-kept-where-it-is-gone",
        "Room stays kept on a worker that came back without it.",
        "dray.core.scheduling.destinations:could_hold",
        "return not any(",
        "return True or not any(",
    ),
    _one(
        "given-up-goes-on",
        "What was taken back is asked to stop once, whether or not its worker hears it.",
        "dray.hub.inbound:_said_by_beat",
        "yield from stop_over(state, worker, body.active)",
        "pass",
    ),
    _one(
        "heartbeat-answered-twice",
        "A heartbeat that was answered before bulk work is answered once more in its turn.",
        "dray.hub.inbound:interpret",
        "if answered and type(body) is Heartbeat:",
        "if False:",
    ),
    _one(
        "stale-hub-takes-back",
        "A hub that lost its store takes it back when a worker has seen a later one.",
        "dray.hub.store.memory:MemoryStore.raise_epoch",
        "self._check_epoch()",
        "pass",
    ),
)

SHOWN_BY: dict[str, int] = {
    "moved-room-reckoned-with": 3400155,
    "served-room-kept-again": 703601,
    "preemptor-not-expected": 1438,
    "room-kept-where-it-is-gone": 13,
    "given-up-goes-on": 45,
    "stale-hub-takes-back": 0,
    "heartbeat-answered-twice": 39,
    "idle-stale-hub-stays": 50,
    "quarantine-kills": 40,
    "victim-frees-at-once": 29,
    "victim-charged": 29,
    "lost-call-free": 26,
    "once-only-stopped": 24,
    "frame-recorded-whole": 24,
    "retried-failure-kept": 21,
    "hard-budget-ignored": 20,
    "keeper-admits-everybody": 18,
    "ended-member-not-recalled": 14,
    "cap-one-too-many": 10,
    "gate-never-opens": 10,
}
