"""Every route of the HTTP API against a real hub, with a few calls each: schemathesis and the streams."""

from __future__ import annotations

import pytest
from tools.fuzz_http import EVENT_STREAMS, SchemaRun, ask_streams, fill_hub, run_schemathesis

from dray.hub.http.calls import ROUTES
from dray.hub.http.openapi import openapi_document
from dray.testing import running_hub


@pytest.fixture(scope="module")
def filled():
    with running_hub() as hub, hub.worker() as worker:
        yield hub, fill_hub(hub, worker)


def test_answers_are_as_described(filled):
    hub, known = filled
    report = run_schemathesis(hub, known, SchemaRun(max_time_s=0, seed=1, examples=3, phases="fuzzing"))
    assert report["findings"] == {}, report["findings"]
    # The streams of events are asked below, and the description itself is what the run begins with.
    assert report["selected"] == len(ROUTES) - len(EVENT_STREAMS) - 1
    assert report["cases"] >= report["selected"]


def test_streams_open_or_refuse(filled):
    hub, known = filled
    report = ask_streams(hub, known["jobs"][0], 20, seed=2)
    assert report["findings"] == {}
    assert set(report["statuses"]) <= {200, 400, 404}


def test_the_description_of_a_job_fits_what_is_taken():
    document = openapi_document()
    spec = document["components"]["schemas"]["JobSpec"]
    assert spec["required"] == ["command"]
    assert "function" not in spec["properties"]
    cancel = document["paths"]["/api/v1/jobs/{id}/cancel"]["post"]["requestBody"]["content"][
        "application/json"
    ]
    assert {"type": "null"} in cancel["schema"]["anyOf"]
