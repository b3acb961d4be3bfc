"""An alarm is raised, or is over: kept in the ledger, so that a restart neither forgets nor repeats it."""

from __future__ import annotations

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import AlarmChanged, Clock
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import AlarmRecord


def alarm_changed(state: State, event: AlarmChanged, clock: Clock) -> list[Effect]:
    """Note it, unless it was so already."""
    known = state.ledger.get(("alarm", event.key))
    if (known is not None) == event.raised:
        return []
    record = AlarmRecord(event.kind, event.subject, event.text, clock.at_ms, event.job_id)
    state.enter("alarm", event.key, record if event.raised else None)
    worker = event.subject if event.kind == "worker_away" else ""
    data = {"key": event.key, "kind": event.kind, "subject": event.subject, "text": event.text}
    kind = "alarm_raised" if event.raised else "alarm_cleared"
    return [Note(kind, event.job_id, worker=worker, data=data)]
