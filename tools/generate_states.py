"""The page about states, printed from the tables that the code runs by.

Knows no rule of its own: phases and moves come from `attempts.TRANSITIONS`, states from the records. What is written
by hand is one line of meaning per name, and a name without one is an error: a new phase cannot be left out of the page.
"""

from __future__ import annotations

from collections.abc import Sequence

from dray.core.lifecycle.holding.attempts import TRANSITIONS, TRIGGERS
from dray.core.model.records.records import JobState, Phase

PHASES: dict[Phase, str] = {
    Phase.ASSIGNED: "sent to a worker that has not answered yet; holds its resources there",
    Phase.ACCEPTED: "the worker has it durably; the task counts as running",
    Phase.RUNNING: "user code runs",
    Phase.STOPPING: "asked to stop; holds its resources until it is confirmed gone",
    Phase.UNKNOWN: "its worker is silent, nobody knows how it is doing",
    Phase.SUCCEEDED: "ended with success",
    Phase.FAILED: "ended with a failure: uses up one of `retries`",
    Phase.KILLED: "ended because it was stopped",
    Phase.PREEMPTED: "handed back by its worker: the task is queued again at no charge",
    Phase.LOST: "given up with its worker: uses up one of `losses` if it had started",
    Phase.REVOKED: "taken back before it was accepted, at no charge",
}
EVENTS: dict[str, str] = {
    "accepted": "the worker says `job_accepted`, or registers with it",
    "started": "the worker says `job_started`",
    "stop": "the job was cancelled, or a base-only worker let it run past its limit",
    "silent": "nothing was heard of the worker for 40 s",
    "returned": "the worker speaks again",
    "succeeded": "`job_result` with `succeeded` or `completed`",
    "failed": "`job_result` with `failed`",
    "killed": "`job_result` with `killed`",
    "preempted": "`job_result` with `preempted`",
    "lost": "silent for 120 s (services 60 s), or the worker came back without it",
    "revoked": "not accepted within 30 s, or the worker said goodbye first",
    "adopted": "the worker came back with it while its task still waited",
}
STATES: dict[JobState, tuple[str, str]] = {
    JobState.PENDING: (
        "it waits, or is assigned and not accepted",
        "none of its tasks runs; an array has not begun",
    ),
    JobState.RUNNING: (
        "its current attempt was accepted",
        "a task runs; an array has begun and has not ended",
    ),
    JobState.SUCCEEDED: ("its attempt succeeded", "all tasks succeeded"),
    JobState.FAILED: ("it failed more often than `retries` allows", "a task failed"),
    JobState.KILLED: ("it was cancelled or stopped", "it was cancelled, or a task was and none failed"),
    JobState.WORKER_FAILED: (
        "its worker was lost more often than `losses` allows",
        "a task ended so and none failed",
    ),
    JobState.UNSCHEDULABLE: (
        "its scheduling timeout ran out while it waited",
        "a task ended so, none failed and none lost its worker for good",
    ),
}
INTRO = """# States

Written by the code itself from the tables it runs by.

A **job** has one or more **tasks**. A task is given to a worker as an **attempt**; a task that is tried again gets a
new attempt. Phases belong to attempts, states to tasks and jobs. A message that is not in the table below for the phase
an attempt is in changes nothing: it is a duplicate, or comes from an attempt whose time is over.
"""
TASK_DIAGRAM = """```mermaid
stateDiagram-v2
    [*] --> pending: submitted
    pending --> running: accepted
    running --> pending: tried again
    running --> succeeded
    running --> failed: no retries left
    running --> worker_failed: no losses left
    running --> killed: cancelled
    pending --> killed: cancelled
    pending --> unschedulable: waited too long
```"""


def states_page() -> str:
    """The whole page as Markdown."""
    parts = [
        INTRO,
        "## Attempts\n",
        _diagram(),
        "",
        _phase_table(),
        "",
        _event_table(),
        "",
        _move_table(),
        "",
    ]
    parts += ["## Tasks and jobs\n", TASK_DIAGRAM, "", _state_table(), ""]
    parts.append("A final state never changes. Whichever is recorded first wins: a result, or a cancel.")
    return "\n".join(parts) + "\n"


def _diagram() -> str:
    """Moves between the same two phases share an arrow, so that the picture can be read."""
    arrows: dict[tuple[Phase, Phase], list[str]] = {}
    for (before, trigger), after in TRANSITIONS.items():
        arrows.setdefault((before, after), []).append(trigger)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.ASSIGNED}: placed"]
    lines += [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in arrows.items()]
    lines += [f"    {phase} --> [*]" for phase in Phase if not phase.live]
    return "\n".join([*lines, "```"])


def _phase_table() -> str:
    rows = [
        (f"`{phase}`", "holds its resources" if phase.live else "final", PHASES[phase]) for phase in Phase
    ]
    return _table(("phase", "", "meaning"), rows)


def _event_table() -> str:
    return _table(("event", "when"), [(trigger, EVENTS[trigger]) for trigger in TRIGGERS])


def _move_table() -> str:
    """Every move of the table, one column per phase it leads from; an empty cell changes nothing."""
    sources = [phase for phase in Phase if any(before is phase for before, _ in TRANSITIONS)]
    rows = []
    for trigger in TRIGGERS:
        after = (TRANSITIONS.get((phase, trigger)) for phase in sources)
        rows.append((trigger, *(f"`{phase}`" if phase else "" for phase in after)))
    return _table(("event", *(f"in `{phase}`" for phase in sources)), rows)


def _state_table() -> str:
    rows = [
        (f"`{state}`", "final" if state.final else "", STATES[state][0], STATES[state][1])
        for state in JobState
    ]
    return _table(("state", "", "a task", "a job"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
