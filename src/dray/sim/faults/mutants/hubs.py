"""Deliberate bugs in how several hubs share a store, and its workers: the fault simulation must notice each of them.

Some stand in the simulated database, whose conditions are those of the statements in PostgreSQL.
"""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_RULES = "dray.hub.store.leading:"
_FOLLOWER = "dray.hub.engine.follower:"
_DATABASE = "dray.sim.faults.leads.database:SharedStore."
_GATEWAY = "dray.hub.gateways.gateway:Gateway."
_LINK = "dray.hub.gateways.leading:Link."
_WORKERS = "dray.core.lifecycle.happenings.workers:"


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
        "turn-in-doubt-computed-anew",
        "A turn that was not answered, and is not there, is taken once more at another time.",
        "dray.sim.faults.leads.lead:Lead._settle",
        "self.link.ask(lambda: self._write(turn, durable), committed, again)",
        "self.link.ask(lambda: self._write(turn._replace(at_ms=turn.at_ms + 9), durable), committed, again)",
    ),
    _one(
        "beating-row-taken",
        "The lead is taken from a hub that has renewed it since.",
        _DATABASE + "take",
        "if (file.epoch, file.beat) != seen.mark:",
        "if False:",
    ),
)

# In how hubs that stand by carry what workers say.
GATEWAYS = (
    _one(
        "gateway-acks-by-itself",
        "A gateway answers heartbeats that no leader has heard.",
        _GATEWAY + "_pass_on",
        "self._heard[peer.no] = read.beat",
        "self._heard[peer.no] = read.beat; peer.ack(read.beat, self._max_epoch, self._told_seq, self._leader)",
    ),
    _one(
        "let-go-when-sent",
        "A gateway lets go of what workers said once it is sent.",
        _GATEWAY + "_flush",
        "self._say(frame)",
        "self._say(frame); self.kept.done(1 << 60)",
    ),
    _one(
        "not-sent-again",
        "What a leader has not done with is not sent to the next one.",
        _GATEWAY + "unlinked",
        "self.kept.rewind(self.peers)",
        "self.kept.done(1 << 60)",
    ),
    _one(
        "nothing-said-again",
        "Whoever is taken up from a gateway is not told again of what it may have missed.",
        _WORKERS + "_resume",
        "messages.append(Assign(one.worker, uid))",
        "pass",
    ),
    _one(
        "stops-not-said-again",
        "Whoever is taken up from a gateway is not asked again to stop what it was asked to.",
        _WORKERS + "_resume",
        "messages.append(_ask_to_stop(state, attempt, clock))",
        "pass",
    ),
    _one(
        "told-twice-credit-kept",
        "What a worker is told again is not taken off the credit that travelled with its socket.",
        _WORKERS + "_resume",
        "max(0, one.credit - unheard)",
        "one.credit + unheard",
    ),
    _one(
        "lost-turns-unnoticed-at-gateways",
        "A leader goes on with workers who were told of turns that its store has lost.",
        _LINK + "_greet",
        "if hello.done_seq and (knows_more or await self._gateways.has_lost(hello)):",
        "if False:",
    ),
    _one(
        "known-gateway-believed",
        "A leader asks nothing of a gateway that it knows, though another one led meanwhile and its turns are lost.",
        _LINK + "_greet",
        "if hello.done_seq and (knows_more or await self._gateways.has_lost(hello)):",
        "if is_new and hello.done_seq and (knows_more or await self._gateways.has_lost(hello)):",
    ),
    Mutant(
        "equal-epoch-of-another-leader",
        "Who takes over, and a leader whom a gateway greets, keep an epoch that workers have heard from another hub.",
        (
            Edit(
                _LINK + "_greet",
                "hello.max_epoch > gateways.epoch or (is_new and hello.max_epoch == gateways.epoch)",
                "hello.max_epoch > gateways.epoch",
            ),
            Edit(
                "dray.sim.faults.leads.standby:Standby._take",
                "max(least_epoch(self._home.known), self._home.heard_epoch + 1)",
                "least_epoch(self._home.known)",
            ),
        ),
    ),
    _one(
        "gap-in-told-turns-folded",
        "One who follows folds a turn that the leader tells of without the one before it.",
        _FOLLOWER + "Follower.hear",
        "if entry.seq > fold.seq + 1 or entry.epoch < fold.epoch:",
        "if False:",
    ),
)
