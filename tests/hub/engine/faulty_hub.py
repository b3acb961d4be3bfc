"""A real hub with faults built in, run as a process: `python faulty_hub.py HOME PORT`.

Jobs are named after what they do to it. The faults sit where a bug would: in a rule, in the pass, in an effect, in an
answer. While HOME/broken is there every pass fails, with nobody to blame.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dray.config import load_hub
from dray.core.lifecycle import apply
from dray.core.lifecycle.state import events
from dray.core.lifecycle.state.state import State
from dray.core.scheduling.passes import turn
from dray.core.scheduling.passes.planning import plan
from dray.hub import app
from dray.hub.answers import answers
from dray.hub.documents import why_and_plan as plans
from dray.hub.engine import failed_turns as setbacks
from dray.hub.engine import turns
from dray.hub.workers import outbound as effect_runner


def install(home: Path) -> None:
    submitted = apply.RULES[events.JobsSubmitted]

    def submit(state: State, event: Any, clock: Any) -> Any:
        effects = submitted(state, event, clock)
        if any(job.name == "poison" for job in state.jobs.values()):
            raise ZeroDivisionError("with a secret in its text")
        return effects

    def decide(state: State) -> Any:
        if (home / "broken").exists():
            raise KeyError("the pass")
        return plan(state)

    def spell(facts: Any) -> bytes:
        packed = events.pack_facts(facts)
        if b"unspellable" in packed:
            raise OverflowError
        return packed

    assign = effect_runner.Runner._assign

    def send(self: Any, effect: Any) -> None:
        attempt = self._state.attempts[effect.uid]
        if self._state.jobs[attempt.job_id].name == "unsendable":
            raise IndexError("no")
        assign(self, effect)

    why_steps = plans.why_steps

    def explain(state: State, find: Any, *rest: Any) -> Any:
        if find(state).name == "unanswerable":
            raise RecursionError("deep")
        return why_steps(state, find, *rest)

    apply.RULES[events.JobsSubmitted] = submit
    faulty_pass: Any = turn
    faulty_pass.plan = decide
    faulty: Any = turns
    faulty.pack_facts = spell
    effect_runner.Runner._assign = send  # type: ignore[method-assign]  # the fault
    faulty_answers: Any = answers
    faulty_answers.why_steps = explain
    setbacks.SKIP_S = 0.5


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.exit(app.run_hub(load_hub(Path(sys.argv[1]), {"port": int(sys.argv[2])})))
