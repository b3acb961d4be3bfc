"""Adding and removing templates, decided inside the turn: of two who add at once each gets a version of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.core.lifecycle.state.events import Clock, TemplateAdded, TemplateRemoved
from dray.core.lifecycle.state.state import State
from dray.core.model.records.ledger import TemplateRecord
from dray.core.model.templates.template import Template, digest_of, pack_template
from dray.errors import Conflict, NotFound
from dray.hub.access.caller import Caller
from dray.hub.engine.turns import Decision
from dray.hub.store.base import AuditRecord
from dray.hub.templates.library import built_in, record_of, stored

MAX_TEMPLATES = 1000
MAX_BYTES_IN_ALL = 32 << 20
Finish = Callable[[State, bool], Any]


def add(caller: Caller, template: Template, finish: Finish) -> Callable[[State, Clock], Decision]:
    """Make the decision of one add; what is the newest version already stays the newest."""
    document = pack_template(template)
    digest = digest_of(template)

    def decide(state: State, clock: Clock) -> Decision:
        known = record_of(state, template.name)
        if known is not None and not known.removed_at_ms and known.versions[-1].digest == digest:
            return Decision(answer=lambda after: finish(after, False))
        forgets = _make_room(stored(state), template.name, len(document))
        event = TemplateAdded(template.name, digest, document, caller.user, forgets)
        record = AuditRecord(clock.at_ms, caller.user, caller.token_id, "add_template", template.name, digest)
        return Decision([event], lambda after: finish(after, True), (record,))

    return decide


def _make_room(records: dict[str, TemplateRecord], name: str, size: int) -> str:
    """The removed template whose history makes room for one more; raises where living ones fill all there is."""
    held = sum(len(version.document) for record in records.values() for version in record.versions)
    if held + size > MAX_BYTES_IN_ALL:
        raise Conflict(
            f"templates take {held} bytes and may take {MAX_BYTES_IN_ALL} in all: remove some that nobody uses"
        )
    if name in records or len(records) < MAX_TEMPLATES:
        return ""
    gone = [(record.removed_at_ms, key) for key, record in records.items() if record.removed_at_ms]
    if not gone:
        raise Conflict(f"there are {len(records)} templates, the limit: remove some that nobody uses")
    return min(gone)[1]


def remove(caller: Caller, name: str, finish: Finish) -> Callable[[State, Clock], Decision]:
    """Make the decision of one removal. Jobs that were made by it are whole and go on."""

    def decide(state: State, clock: Clock) -> Decision:
        record = record_of(state, name)
        if record is None or (record.removed_at_ms and name not in built_in()):
            if name in built_in():
                raise Conflict(
                    f"template {name!r} comes with dray and cannot be removed: add one to shadow it"
                )
            raise NotFound(f"there is no template {name!r}; `dray template ls` lists them")
        if record.removed_at_ms:
            return Decision(answer=lambda after: finish(after, False))
        audit = AuditRecord(clock.at_ms, caller.user, caller.token_id, "remove_template", name, "")
        return Decision([TemplateRemoved(name, caller.user)], lambda after: finish(after, True), (audit,))

    return decide
