"""Deliberate bugs that only a rare coincidence shows, and the seeds that showed shy ones last.

Those seeds are asked first. Any change of the product may turn them into other histories: then `./dev soak
--mutants --renew` looks for others and keeps those.
"""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_KEPT = "dray.core.scheduling.claims.reservations:"


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


SHY = (
    _one(
        "served-room-kept-again",
        "A job that got its room and waits on within the same millisecond has it kept once more.",
        _KEPT + "find_stale",
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
        "dray.core.scheduling.claims.moving_room:could_hold",
        "return not any(",
        "return True or not any(",
    ),
    _one(
        "given-up-goes-on",
        "What was taken back is asked to stop once, whether or not its worker hears it.",
        "dray.hub.workers.inbound:_said_by_beat",
        "yield from stop_over(state, worker, body.active)",
        "pass",
    ),
    _one(
        "heartbeat-answered-twice",
        "A heartbeat that was answered before bulk work is answered once more in its turn.",
        "dray.hub.workers.inbound:interpret",
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
    "answer-before-commit": 17,
    "idle-stale-hub-stays": 50,
    "equal-epoch-trusted": 61,
    "idempotency-key-ignored": 85,
    "stale-session-heard": 17,
    "one-loss-less": 13,
    "revoked-not-stopped": 16,
    "newer-attempt-overlooked": 10,
    "quarantine-kills": 40,
    "grace-forgets-losses": 25,
    "start-grace-ignored": 18,
    "brake-ignored": 53,
    "loss-never-decided": 56,
    "acceptance-not-watched": 11,
    "stop-asked-once": 52,
    "result-not-resent": 35,
    "lease-not-kept": 52,
    "lease-too-long": 52,
    "unknown-stop-unanswered": 9,
    "epoch-forgotten": 40,
    "next-generation-early": 15,
    "go-said-once": 213,
    "break-not-written": 41,
    "lost-member-adopted": 15,
    "cancel-forgets-ended-members": 18,
    "half-a-gang-cancelled": 11,
    "save-counted-twice": 18,
    "hard-budget-ignored": 38,
    "budget-forgets-what-ended": 38,
    "gate-never-opens": 10,
    "cap-one-too-many": 10,
    "keeper-admits-everybody": 28,
    "reservation-ignores-limits": 28,
    "one-keeper-replaces-another": 236,
    "keeper-not-told": 6054,
    "owner-waits-its-turn": 360,
    "promised-twice": 292,
    "room-left-untold": 102,
    "equal-band-stopped": 28,
    "share-not-left": 15,
    "min-run-ignored": 13,
    "limits-ignored": 48,
    "victim-room-given-away": 28,
    "victim-goes-last": 28,
    "receipt-outlives-cancel": 256,
    "receipt-forgotten": 400,
    "named-resource-not-claimed": 8,
    "moved-without-room": 48,
    "move-budget-ignored": 432,
    "moved-over-and-over": 299,
    "moved-room-given-away": 106,
    "moved-room-reckoned-with": 3400155,
    "moved-into-the-room-it-makes": 41,
    "gang-member-moved": 378,
    "lost-call-free": 50,
    "retries-of-calls-ignored": 22,
    "earlier-try-frees-a-call": 460,
    "cancelled-calls-forgotten": 22,
    "frame-recorded-whole": 24,
    "retried-failure-kept": 21,
    "calls-counted-by-message": 21,
    "held-job-fed": 25,
    "resume-never-granted": 20,
    "call-s-end-not-told": 44,
    "call-s-failure-will-do": 54,
    "lost-calls-not-sent-again": 44,
    "served-room-kept-again": 571,
    "preemptor-not-expected": 1438,
    "room-kept-where-it-is-gone": 13,
    "given-up-goes-on": 45,
    "heartbeat-answered-twice": 85,
    "stale-hub-takes-back": 95,
    "refusals-unpunished": 857,
    "pause-never-ends": 16,
    "never-ready-again": 16,
}
