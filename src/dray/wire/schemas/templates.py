"""Documents of the HTTP API about templates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class TemplateRow(msgspec.Struct):
    """One template; version 0 is one that comes with dray."""

    name: str
    version: int
    kind: Annotated[str, Meta(description="job or service")]
    about: str
    built_in: bool
    digest: Annotated[str, Meta(description="names its content: sha256:…")]
    user: Annotated[str, Meta(description="who added it")] = ""
    at: str | None = None


class TemplateList(msgspec.Struct):
    """All templates, each as its bare name means it."""

    templates: list[TemplateRow]


class TemplateParameter(msgspec.Struct):
    """One parameter; `allowed` says in words what may be given."""

    name: str
    type: str
    required: bool
    allowed: str
    default: Any = None
    help: str = ""


class TemplateDocument(TemplateRow, kw_only=True):
    """A template, its parameters, and the document as it was added."""

    params: list[TemplateParameter]
    document: dict[str, Any]


class AddedTemplate(TemplateDocument, kw_only=True):
    """What was added; `created` is False where the newest version said the same already."""

    created: bool


class TemplateVersionRow(msgspec.Struct):
    """One version, and who added it."""

    version: int
    digest: str
    user: str = ""
    at: str | None = None


class TemplateHistory(msgspec.Struct):
    """The last versions, newest first; of a template that was removed, when and by whom."""

    name: str
    versions: list[TemplateVersionRow]
    removed_at: str | None = None
    removed_by: str = ""


class RenderRequest(msgspec.Struct):
    """Values for the parameters of a template."""

    params: dict[str, Any] = {}
    version: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class RenderedTemplate(msgspec.Struct):
    """The job that a template makes."""

    template: Annotated[str, Meta(description="NAME@VERSION")]
    spec: dict[str, Any]


class TemplateRequest(msgspec.Struct):
    """A template as it is written."""

    name: Annotated[str, Meta(max_length=64)]
    spec: Annotated[dict[str, Any], Meta(description="the keys of a job file, with ${name} in values")]
    kind: Literal["job", "service"] = "job"
    about: Annotated[str, Meta(max_length=1000)] = ""
    params: Annotated[dict[str, Any], Meta(description="parameters by name")] = {}
    open: Annotated[
        list[Annotated[str, Meta(max_length=64)]],
        Meta(max_length=100, description="fields of the job that may be given beside it"),
    ] = []
    allow_program: Annotated[bool, Meta(description="whether parameters may choose what is run")] = False


class RemovedTemplate(msgspec.Struct):
    """A template that is gone, or was before."""

    name: str
    removed: bool
    note: str = ""
