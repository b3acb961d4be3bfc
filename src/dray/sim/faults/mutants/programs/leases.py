"""Deliberate bugs in leases: what executors are told and given, and what is believed of them."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_LEASES = "dray.hub.workers.leases:Leases."
_SESSION = "dray.hub.workers.leases:LeaseSession."


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


LEASES = (
    _one(
        "lease-of-a-stranger-renewed",
        "Whoever names a lease renews it, though it is another's.",
        _LEASES + "_why_not",
        "if attempt.worker != session.worker:",
        "if False:",
    ),
    _one(
        "begun-lease-returned",
        "A lease that was begun is taken back as if it were not.",
        _LEASES + "give_back",
        "elif uid in session.accepted or attempt is None or attempt.phase is not Phase.ASSIGNED:",
        "elif attempt is None:",
    ),
    _one(
        "poll-that-spins",
        "A poll whose news was taken back looks for more over and over, and the hub does nothing else.",
        _LEASES + "_poll",
        "session.news.clear()",
        "pass",
    ),
    _one(
        "renewal-accepts-nothing",
        "A renewed lease is not accepted by it.",
        _LEASES + "renew",
        'said.append(message("job_accepted", about))',
        "pass",
    ),
    _one(
        "renewal-answered-unheard",
        "A renewal is answered before the hub has heard it.",
        _LEASES + "renew",
        "await beaten",
        "pass",
    ),
    _one(
        "named-leases-unread",
        "What an executor still works on when it registers is taken for gone.",
        _LEASES + "register",
        "for uid, task in ask.active",
        "for uid, task in ()",
    ),
    _one(
        "orders-never-come",
        "An executor is not told to stop.",
        _SESSION + "_order",
        "self.orders[uid] = payload",
        "pass",
    ),
    _one(
        "given-twice",
        "A lease is given with each poll until it is accepted.",
        _LEASES + "dequeue",
        "session.assigned.pop(uid)",
        "session.assigned[uid]",
    ),
    _one(
        "stop-told-as-drop",
        "An executor that is to stop something is told to forget it.",
        _LEASES + "_take_orders",
        '"drop" if payload["reason"] in DROPPED else "stop"',
        '"drop"',
    ),
    Mutant(
        "stopped-lease-dropped",
        "An executor that registers is told to forget what it is to stop, and never says that it has.",
        (
            Edit(_LEASES + "_order_end", "if attempt is None or not attempt.phase.live:", "if True:"),
            Edit(_LEASES + "register", "if uid not in stopped", "if True"),
        ),
    ),
    _one(
        "stray-lease-dropped",
        "A hub that was put back to a backup has executors drop what it does not know.",
        _LEASES + "renew",
        "if uid in session.strays and uid not in self._engine().state.attempts:",
        "if False:",
    ),
)
