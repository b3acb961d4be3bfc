"""Deliberate bugs around ports: who holds which, for how long, and who knows of it."""

from __future__ import annotations

from dray.sim.faults.mutants.mutants import Edit, Mutant

_ROOMS = "dray.core.scheduling.capacity.remaining:Rooms."
_LEASES = "dray.agent.decide.leases:Leases."
_MACHINE = "dray.agent.decide.machine:Machine."

PORTS = (
    Mutant(
        "port-given-twice",
        "A port that an attempt holds is given to the next.",
        (Edit(_LEASES + "take", "{*held, *chosen, *fixed}", "{*chosen, *fixed}"),),
    ),
    Mutant(
        "ports-die-with-the-agent",
        "An agent that starts anew does not claim the ports of what runs.",
        (Edit("dray.agent.decide.attempts:Running.read_meta", 'meta.get("ports") or ()', "()"),),
    ),
    Mutant(
        "ports-never-given-back",
        "The ports of what is over stay held until the hub has acked it.",
        (Edit(_LEASES + "take", 'if other.phase != "exited" ', ""),),
    ),
    Mutant(
        "ports-untold",
        "The hub does not hear which ports an attempt has.",
        (Edit("dray.agent.decide.attempts:acceptance", "if attempt.ports:", "if False:"),),
    ),
    Mutant(
        "fixed-port-shared",
        "Two jobs that want the same port are placed on one worker.",
        (
            Edit(_ROOMS + "_named", "1 - taken", "1"),
            Edit(_ROOMS + "mask", "mask &= column[:count] >= amount", "pass"),
        ),
    ),
    Mutant(
        "leased-ports-uncounted",
        "A worker is given tasks as if its range had no end.",
        (Edit("dray.core.lifecycle.state.columns:Columns.update", "if worker.ports >= 0:", "if False:"),),
    ),
    Mutant(
        "meeting-port-uncounted",
        "The port on which a gang meets is not counted.",
        (Edit("dray.core.model.specs.resources:_port_needs", "unnamed + (spec.node_count > 1)", "unnamed"),),
    ),
    Mutant(
        "lost-for-a-port",
        "A worker that has no port for a task says that it can start nothing at all.",
        (Edit(_MACHINE + "_refused", 'if event.get("elsewhere"):', "if False:"),),
    ),
)
