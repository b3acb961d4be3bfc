"""The OpenAPI document: complete, of one piece, and the same every time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from dray.hub.http.calls import ROUTES
from dray.hub.http.openapi import openapi_document, openapi_text


def references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_route_is_there_and_nothing_else():
    found = {(method.upper(), path) for path, item in openapi_document()["paths"].items() for method in item}
    assert found == {(route.method, route.path) for route in ROUTES}
    assert len({route.name for route in ROUTES}) == len(ROUTES)


def test_every_reference_leads_somewhere():
    document = openapi_document()
    schemas = document["components"]["schemas"]
    found = set(references(document))
    assert found
    assert all(reference.removeprefix("#/components/schemas/") in schemas for reference in found)
    for schema in schemas.values():
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})


def test_schemathesis_reads_it():
    schema = schemathesis.openapi.from_dict(openapi_document())
    assert all(hasattr(found, "ok") for found in schema.get_all_operations())
    assert len(list(schema.get_all_operations())) == len(ROUTES)


def test_the_text_does_not_depend_on_the_hash_seed():
    def write(seed):
        code = "from dray.hub.http.openapi import openapi_text; print(openapi_text(), end='')"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert write("1") == write("2") == openapi_text()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_says_how_it_refuses(route):
    operation = openapi_document()["paths"][route.path][route.method.lower()]
    statuses = set(operation["responses"])
    assert {"400", "403", "421"} <= statuses
    assert bool(route.scopes) == bool(operation["security"])
    assert ("401" in statuses) == (bool(route.scopes) or route.name == "open_session")
    assert ("404" in statuses) >= ("{" in route.path)
    for status, response in operation["responses"].items():
        if int(status) >= 400:
            schema = response["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}
    named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
    assert named == set(re.findall(r"{(\w+)}", route.path))


def test_a_policy_is_described_as_it_is_taken():
    schemas = json.loads(openapi_text())["components"]["schemas"]
    policy = {name: {**schema} for name, schema in schemas.items()}
    document = {"$ref": "#/components/schemas/Policy", "components": {"schemas": policy}}
    sound = jsonschema_rs.validator_for(document).is_valid
    assert sound({"queues": {"a": None, "b": {"order": "sjf", "ageing_s": "30m"}}, "pacing": None})
    assert sound({"quotas": [{"user": "*", "gpus": 1.5, "gpu_hours": {"hard": 3, "per_s": 60}}]})
    faults: tuple[dict[str, Any], ...] = (
        {"queus": {}},
        {"queues": {"a": {"order": "fiffo"}}},
        {"placement": {"strategy": "pressure"}},
        {"preemption": {"strategy": "greedy"}},
        {"pacing": {"running": [{"label": "x"}]}},
    )
    for wrong in faults:
        assert not sound(wrong), wrong


def test_what_is_sent_may_hold_nothing_unknown():
    schemas = json.loads(openapi_text())["components"]["schemas"]
    for name in ("JobSpec", "ArraySpec", "CancelRequest", "TokenRequest"):
        assert schemas[name]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["JobDocument"]
