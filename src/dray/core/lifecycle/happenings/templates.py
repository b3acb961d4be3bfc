"""Templates come and go: records of the ledger, and nothing that waits or runs is touched by them."""

from __future__ import annotations

import msgspec

from dray.core.lifecycle.state.effects import Effect, Note
from dray.core.lifecycle.state.events import Clock, TemplateAdded, TemplateRemoved
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import TemplateRecord, TemplateVersion

# Of so many versions the documents are kept.
KEPT_VERSIONS = 20


def template_added(state: State, event: TemplateAdded, clock: Clock) -> list[Effect]:
    """Add a version, numbered on from the last one there ever was."""
    if event.forgets:
        state.enter("template", event.forgets, None)
    record = state.ledger.get(("template", event.name))
    known = record.versions if isinstance(record, TemplateRecord) else ()
    number = known[-1].version + 1 if known else 1
    version = TemplateVersion(number, event.digest, event.document, event.user, clock.at_ms)
    state.enter("template", event.name, TemplateRecord((*known, version)[-KEPT_VERSIONS:]))
    return [Note("template_added", data={"name": event.name, "version": number, "user": event.user})]


def template_removed(state: State, event: TemplateRemoved, clock: Clock) -> list[Effect]:
    """Drop the documents and keep who added what."""
    record = state.ledger.get(("template", event.name))
    if not isinstance(record, TemplateRecord) or record.removed_at_ms:
        return []
    emptied = tuple(msgspec.structs.replace(version, document=b"") for version in record.versions)
    state.enter("template", event.name, TemplateRecord(emptied, clock.at_ms, event.user))
    return [Note("template_removed", data={"name": event.name, "user": event.user})]
