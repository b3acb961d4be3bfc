"""Operations on templates. A template runs with the rights of whoever uses it, so that only admins add or remove one;
what is for oneself alone is a job file.
"""

from __future__ import annotations

from dray.errors import Conflict
from dray.hub.operations import asks
from dray.hub.operations.operation import ADMIN, READ, Operation
from dray.wire.schemas import templates as shapes

TEMPLATES = (
    Operation("list_templates", "List templates", READ, asks.Nothing, shapes.TemplateList,
              lambda desk, caller, ask: desk.service.templates.list(caller), weight=2),
    Operation("show_template", "Show a template with its parameters", READ, asks.ShowTemplate, shapes.TemplateDocument,
              lambda desk, caller, ask: desk.service.templates.show(caller, ask.spelled)),
    Operation("list_template_versions", "List the versions of a template, newest first", READ, asks.NamedSo,
              shapes.TemplateHistory,
              lambda desk, caller, ask: desk.service.templates.history(caller, ask.name)),
    Operation("render_template", "Show the job that a template and values make; nothing is submitted", READ,
              asks.RenderTemplate, shapes.RenderedTemplate,
              lambda desk, caller, ask: desk.service.templates.render(caller, ask.template.spelled, ask.params)),
    Operation("add_template", "Add a template, or one more version of it", ADMIN, asks.AddTemplate,
              shapes.AddedTemplate, lambda desk, caller, ask: desk.service.templates.add(caller, ask.document),
              weight=2, repeat="same", errors=(Conflict,)),
    Operation("remove_template", "Remove a template; jobs made by it go on", ADMIN, asks.NamedSo,
              shapes.RemovedTemplate, lambda desk, caller, ask: desk.service.templates.remove(caller, ask.name),
              repeat="same", errors=(Conflict,)),
)  # fmt: skip
