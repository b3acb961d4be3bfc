"""An alarm is raised, or is over; what was advised: kept in the ledger, so that no restart forgets it."""

from __future__ import annotations

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import AlarmChanged, Clock
from dray.core.lifecycle.state.service_events import AdviceGiven
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import AdviceRecord, AlarmRecord

MOST_ADVICE = 40


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


def advice_given(state: State, event: AdviceGiven, clock: Clock) -> list[Effect]:
    """Keep it until it can be judged; what is asked again replaces what was told, and the oldest goes."""
    given = (event.key, event.kind, event.like, event.count, event.here, event.before_ms, event.foretold_ms)
    state.enter("advice", f"{event.key}/{event.count}/{event.here}", AdviceRecord(*given, clock.at_ms))
    known = [
        (record.at_ms, key) for (_, key), record in state.ledger.items() if isinstance(record, AdviceRecord)
    ]
    for _, key in sorted(known)[:-MOST_ADVICE]:
        state.enter("advice", key, None)
    return []
