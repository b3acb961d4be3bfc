"""Deliberate bugs in how several hubs share a store: the fault simulation must notice each of them.

Some stand in the simulated database, whose conditions are those of the statements in PostgreSQL.
"""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_RULES = "dray.hub.store.leading:"
_FOLLOWER = "dray.hub.engine.follower:"
_DATABASE = "dray.sim.faults.leads.database:SharedStore."


def _one(name: str, sentence: str, where: str, old: str, new: str) -> Mutant:
    return Mutant(name, sentence, (Edit(where, old, new),))


HUBS = (
    _one(
        "tail-read-before-take",
        "Who takes over goes on from what it had folded before, and misses what was committed until then.",
        _FOLLOWER + "Follower.finish",
        "while self.look():",
        "while self._fold is None and self.look():",
    ),
    _one(
        "effects-before-epoch",
        "What a new leader's first turn brings leaves before its epoch is committed.",
        "dray.hub.engine.turns:Conductor.turn",
        "        yield commit",
        '        if any(type(fact).__name__ == "EpochStarted" for fact in gathered.facts):\n'
        "            yield Deliver(gathered.effects)\n        yield commit",
    ),
    _one(
        "row-in-doubt-believed",
        "A turn that can be seen is taken for durable, though no later write was answered.",
        _RULES + "settle",
        "yield Settling.RENEW",
        "pass",
    ),
    _one(
        "turn-in-doubt-dropped",
        "A turn that was not answered, and is not there, is not committed again.",
        _RULES + "settle",
        "yield Settling.COMMIT",
        "pass",
    ),
    _one(
        "turn-in-doubt-repeated",
        "A turn that was not answered, and is there, is committed once more.",
        _RULES + "settle",
        "if found.epoch == epoch:",
        "if False:",
    ),
    _one(
        "lost-turns-unnoticed",
        "A leader goes on in a database that has lost its last turns.",
        _RULES + "check_found",
        "if found.last_seq < known.last_seq:",
        "if False:",
    ),
    Mutant(
        "lost-rows-unnoticed",
        "A leader goes on in a database that has lost rows which it believes written.",
        (
            Edit(_RULES + "check_found", "if found.applied_seq < known.applied_seq:", "if False:"),
            Edit(_DATABASE + "try_project", "self.file.applied_seq < written_seq", "False"),
        ),
    ),
    _one(
        "trust-without-end",
        "What needs no commit leaves a hub whose lease has run out.",
        _RULES + "Trust.holds",
        "now_s < self._until_s",
        "True",
    ),
    _one(
        "failed-look-is-silence",
        "One that stands by counts looks that were not answered as the leader's silence.",
        _RULES + "Vigil.miss",
        "self._last = None",
        "pass",
    ),
    _one(
        "silence-from-the-asking",
        "A silence counts from when a look began, though the leader beat before it was answered.",
        _RULES + "Vigil.note",
        "seen.mark, answered_s",
        "seen.mark, began_s",
    ),
    _one(
        "released-by-own-turn",
        "One that stands by lets go of what it has folded, whether or not there are rows of it.",
        _FOLLOWER + "Follower._release",
        "<= found.applied_seq",
        "<= fold.seq",
    ),
    _one(
        "lost-rows-followed",
        "One that stands by has let go of what the rows show no more.",
        _FOLLOWER + "_tell_other",
        "if found.applied_seq < applied_seq:",
        "if False:",
    ),
    _one(
        "beating-row-taken",
        "The lead is taken from a hub that has renewed it since.",
        _DATABASE + "take",
        "if (file.epoch, file.beat) != seen.mark:",
        "if False:",
    ),
)
