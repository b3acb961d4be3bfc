"""The OpenAPI document, generated from the table of routes and the types of their documents.

Nothing is listed here that is not in `calls.ROUTES`. The text is the same for the same code, so that it can
be kept in the repository and compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from dray import __version__
from dray.core.model.ids import NAME_PATTERN
from dray.core.model.policies.policy import ORDERS, PREEMPTION_RULES, STRATEGIES
from dray.hub.http.calls import ROUTES
from dray.hub.http.replies import STATUS
from dray.hub.http.routes import Route, id_schema
from dray.wire.messages.worker import DIGEST_PATTERN
from dray.wire.schemas.jobs import ErrorAnswer

_REF = "#/components/schemas/{name}"
_ABOUT = {
    200: "done",
    201: "made",
    400: "the request cannot be read as it is; every problem is listed",
    401: "no token, or one that the hub does not know",
    403: "a token without the scope, or a foreign Origin",
    404: "nothing of that name, or it belongs to somebody else",
    405: "the path is there, but not for this method",
    409: "the same id or key with another content, or the present state rules it out",
    413: "over a limit",
    415: "the body is not JSON",
    421: "the Host header names another machine",
    429: "slow down: see Retry-After",
    503: "the hub is starting or stopping",
    507: "no room on the hub's disk",
}
_WORDS = {
    ("Queue", "order"): ORDERS,
    ("PlacementPolicy", "strategy"): STRATEGIES,
    ("PreemptionPolicy", "strategy"): PREEMPTION_RULES,
}
_PATHS: dict[str, dict[str, Any]] = {
    "digest": {"type": "string", "pattern": DIGEST_PATTERN},
    "name": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
}
_HEADERS = {
    "Idempotency-Key": (
        "the same key again gives the same jobs, for 7 days",
        {"type": "string", "pattern": "^[ -~]{1,128}$"},
    ),
    "Last-Event-ID": (
        "resume after this event",
        {"type": "string", "pattern": r"^[0-9]{1,18}\.[0-9]{1,9}$"},
    ),
}


def openapi_text() -> str:
    """Write the document as it is served and kept in the reference."""
    return json.dumps(openapi_document(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def openapi_document(routes: Iterable[Route] = ROUTES) -> dict[str, Any]:
    """Build the document."""
    routes = tuple(routes)
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dray",
            "version": __version__,
            "description": "Submit work, follow it, and look after the workers of a dray hub.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The schemas of every body, each named once."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        kinds: list[Any] = [ErrorAnswer]
        for route in routes:
            kinds += [kind for kind in (route.body, *route.answers.values()) if kind not in (None, *kinds)]
        made, self.components = msgspec.json.schema_components(kinds, ref_template=_REF)
        self._made = list(zip(kinds, made, strict=True))
        _, asked = msgspec.json.schema_components([route.body for route in routes if route.body is not None])
        for name in asked:
            # What a later version answers may hold more; what is sent to this one may not.
            self.components[name]["additionalProperties"] = False
        if "JobSpec" in self.components:
            _describe_spec(self.components)
        if "Policy" in self.components:
            _describe_policy(self.components)
        if "UpdateRequest" in self.components:
            _describe_update(self.components["UpdateRequest"])

    def of(self, kind: Any) -> dict[str, Any]:
        return next(schema for known, schema in self._made if known == kind)


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": _responses(route, schemas),
        "security": [{"token": []}] if route.scopes else [],
    }
    if route.scopes:
        operation["description"] = (
            f"Needs a token with the scope {' or '.join(f'`{one}`' for one in route.scopes)}."
        )
    if route.raw_body:
        operation["requestBody"] = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
    if route.body is not None:
        schema = schemas.of(route.body)
        if route.body_optional:
            schema = {"anyOf": [schema, {"type": "null"}]}
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _describe_spec(components: dict[str, Any]) -> None:
    """Say of a job what its types do not: over HTTP it runs a command, and null stands for "left out"."""
    spec = components["JobSpec"]
    for name in ("JobSpec", *re.findall(r"schemas/(\w+)", json.dumps(spec))):
        for field in components[name]["properties"].values():
            if "type" in field:
                field["type"] = [field["type"], "null"]
    del spec["properties"]["function"]
    spec["properties"]["command"] = {
        "type": "array",
        "prefixItems": [{"type": "string", "minLength": 1}],
        "items": {"type": "string"},
        "minItems": 1,
    }
    spec["required"] = ["command"]


def _describe_policy(components: dict[str, Any]) -> None:
    """Say of a policy what its types do not: spans may be text, names are known, and null stands for "left out"."""
    names = ["Policy"]
    for name in names:
        found = dict.fromkeys(re.findall(r"schemas/(\w+)", json.dumps(components[name])))
        names += [other for other in found if other not in names]
    for name in names:
        for key, field in components[name]["properties"].items():
            if (name, key) in _WORDS:
                field["enum"] = list(_WORDS[name, key])
            if key.endswith("_s"):
                span = {"type": "string", "description": "a span of time, such as 90s, 15m, 2h, 7d"}
                field["anyOf"] = [{"type": field.pop("type")}, span]
            if key not in components[name].get("required", ()):
                _allow_null(field)
    # Its "no bound" has no spelling: whoever means it leaves the key out.
    quota = components["Quota"]["properties"]
    for key in ("gpus", "cpus", "memory", "tasks", "jobs"):
        del quota[key]["default"]
    quota["memory"] = {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}
    for key in ("queues", "providers"):
        # A name with nothing after it is an entry with all its defaults.
        _allow_null(components["Policy"]["properties"][key]["additionalProperties"])


def _describe_update(update: dict[str, Any]) -> None:
    """Say of an update what its types do not: it has either field, and never both."""
    for field in update["properties"].values():
        (given,) = (one for one in field.pop("anyOf") if one != {"type": "null"})
        field.pop("default", None)
        field |= given
    update["oneOf"] = [{"required": [name]} for name in update["properties"]]


def _allow_null(field: dict[str, Any]) -> None:
    nothing: dict[str, Any] = {"type": "null"}
    if "enum" in field:
        field["enum"].append(None)
    if isinstance(field.get("type"), list):
        return  # it is part of a job as well, and was described there
    if "type" in field:
        field["type"] = [field["type"], "null"]
    elif "anyOf" in field:
        field["anyOf"] += [] if nothing in field["anyOf"] else [nothing]
    elif "$ref" in field:
        field["anyOf"] = [{"$ref": field.pop("$ref")}, nothing]
    elif "allOf" in field:
        field["anyOf"] = [*field.pop("allOf"), nothing]


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        responses[str(status)] = {
            "description": _ABOUT[status],
            "content": {route.media: {"schema": schemas.of(kind)}},
        }
    refused = {"application/json": {"schema": schemas.of(ErrorAnswer)}}
    for status in sorted({400, 403, 421, *_usual_errors(route)}):
        responses[str(status)] = {"description": _ABOUT[status], "content": refused}
    return responses


def _usual_errors(route: Route) -> set[int]:
    found = {STATUS[kind] for kind in route.operation.errors}
    if route.scopes:
        found |= {401, 429}
    if route.body is not None:
        found |= {413, 415}
    if route.operation.needs_ready:
        found.add(503)
    if "{" in route.path:
        found.add(404)
    return found


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATHS.get(name) or id_schema()}
        for name in re.findall(r"{(\w+)}", route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": param.name, "in": "query", "description": param.about, "schema": param.schema()}
        for param in route.params
    ]


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "description": _HEADERS[name][0], "schema": _HEADERS[name][1]}
        for name in route.headers
    ]
