"""Write the documents of the HTTP API as TypeScript types, for the dashboard.

From the same document that the hub serves. What has a default may be left out, of answers too.
"""

from __future__ import annotations

from typing import Any

from dray.hub.http.openapi import openapi_document

_HEAD = "// Generated from the table of operations by `./dev check`: do not edit.\n\n"
_PLAIN = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def _literal(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f'"{value}"'


def _spell(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(_literal, schema["enum"]))
    if "const" in schema:
        return _literal(schema["const"])
    for many in ("anyOf", "oneOf"):
        if many in schema:
            return " | ".join(dict.fromkeys(map(_spell, schema[many])))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_PLAIN.get(one, "unknown") for one in kind)
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(map(_spell, schema['prefixItems']))}]"
        inner = _spell(schema.get("items") or {})
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"Record<string, {_spell(more) if isinstance(more, dict) else 'unknown'}>"
    return _PLAIN.get(kind or "", "unknown")


def _declare(name: str, schema: dict[str, Any]) -> str:
    if schema.get("type") != "object" or "properties" not in schema:
        return f"export type {name} = {_spell(schema)};\n"
    required = schema.get("required", [])
    lines = [f"export interface {name} {{"]
    for field, inner in schema["properties"].items():
        mark = "" if field in required else "?"
        plain = field if field.isidentifier() else f'"{field}"'
        lines.append(f"  {plain}{mark}: {_spell(inner)};")
    return "\n".join([*lines, "}", ""])


def text() -> str:
    """The file as it is kept."""
    schemas = openapi_document()["components"]["schemas"]
    return _HEAD + "\n".join(_declare(name, schemas[name]) for name in sorted(schemas))
