"""What the hub answers about templates. They are the site's and everybody's to see and use, as the policy lets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dray.core.lifecycle.state.state import State
from dray.core.model.specs.check import check_spec
from dray.core.model.specs.spec import spec_document
from dray.core.model.templates.parameters import describe
from dray.core.model.templates.template import Template, check_template
from dray.errors import NotFound
from dray.hub.access.caller import Caller
from dray.hub.documents.records import moment
from dray.hub.engine.engine import Engine
from dray.hub.rows import Reader
from dray.hub.templates.changes import add, remove
from dray.hub.templates.library import BUILT_IN, Found, built_in, expand, find, newest, record_of
from dray.hub.templates.trial import check_by_trial

Document = dict[str, Any]


class TemplateReads:
    """What there is to be read of templates, by whoever has a state."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def list(self, caller: Caller) -> Document:
        return await self._reader.ask(lambda state: {"templates": [_row(found) for found in newest(state)]})

    async def show(self, caller: Caller, name: str) -> Document:
        return await self._reader.ask(lambda state: _document(find(state, name)))

    async def history(self, caller: Caller, name: str) -> Document:
        """All versions of a template, newest first, also of one that was removed."""

        def look(state: State) -> Document:
            record = record_of(state, name)
            if record is None and name not in built_in():
                raise NotFound(f"there is no template {name!r}; `dray template ls` lists them")
            rows = [
                {"version": one.version, "digest": one.digest, "user": one.user, "at": moment(one.at_ms)}
                for one in reversed(record.versions if record is not None else ())
            ]
            if name in built_in():
                rows.append({"version": BUILT_IN, "digest": built_in()[name].digest, "user": "", "at": None})
            removed = record is not None and bool(record.removed_at_ms)
            return {
                "name": name,
                "versions": rows,
                "removed_at": moment(record.removed_at_ms) if removed and record is not None else None,
                "removed_by": record.removed_by if removed and record is not None else "",
            }

        return await self._reader.ask(look)


class TemplateAnswers(TemplateReads):
    """One hub's answers about its templates."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine

    def expand(self, raw: Mapping[str, Any]) -> Document:
        """The spec of a job that names a template."""
        return expand(self._engine.state, raw)

    async def render(self, caller: Caller, name: str, params: Mapping[str, Any]) -> Document:
        """The job that a template and these values make; nothing is submitted."""

        def look(state: State) -> Document:
            find(state, name)  # what is not there is not found, rather than a fault of the values
            raw = expand(state, {"template": name, "params": params})
            return {"template": raw["template"], "spec": spec_document(check_spec(raw))}

        return await self._engine.ask(look)

    async def add(self, caller: Caller, raw: Any) -> Document:
        """Keep one more version of a template."""
        template = check_template(raw)
        check_by_trial(template)

        def finish(state: State, created: bool) -> Document:
            return _document(find(state, template.name)) | {"created": created}

        answer: Document = await self._engine.change(
            add(caller, template, finish), who=caller.user, body=template.name, kind="template"
        )
        return answer

    async def remove(self, caller: Caller, name: str) -> Document:
        """Remove a template whole; what was made by it goes on."""

        def finish(state: State, done: bool) -> Document:
            back = " (the one that comes with dray holds again)" if name in built_in() else ""
            return {
                "name": name,
                "removed": done,
                "note": f"removed{back}" if done else "it was removed before",
            }

        answer: Document = await self._engine.change(
            remove(caller, name, finish), who=caller.user, body=name, kind="template"
        )
        return answer


def _row(found: Found) -> Document:
    template = found.template
    return {
        "name": template.name,
        "version": found.version,
        "kind": template.kind,
        "about": template.about,
        "built_in": found.version == BUILT_IN,
        "digest": found.digest,
        "user": found.user,
        "at": moment(found.at_ms),
    }


def _document(found: Found) -> Document:
    return _row(found) | {
        "params": [_parameter(found.template, name) for name in found.template.params],
        "document": msgspec.to_builtins(found.template),
    }


def _parameter(template: Template, name: str) -> Document:
    parameter = template.params[name]
    return {
        "name": name,
        "type": parameter.type,
        "default": parameter.default,
        "required": parameter.default is None,
        "allowed": describe(parameter),
        "help": parameter.help,
    }
