"""Ports in a spec: names that make variables, numbers that may be had, and what a fixed one means to matching."""

from __future__ import annotations

from typing import Any

import pytest

from dray.core.model.specs.check import check_spec
from dray.core.model.specs.ports import LEASED, name_ports, port_variables, read_span
from dray.core.model.specs.resources import ask_of
from dray.errors import InvalidInput, InvalidSpec


@pytest.mark.parametrize(
    ("ports", "what"),
    [
        ("http", "must be a list of names"),
        ([80], "item 0 must be text"),
        (["HTTP"], "item 0 must be a name"),
        (["a", "my_port"], "item 1 must be a name"),
        (["a=80"], "item 0 must give a number from 1024 to 65535"),
        (["a=65536"], "item 0 must give a number"),
        (["a="], "item 0 must give a number"),
        (["a=08080"], "item 0 must give a number"),
        (["a=8080\n"], "item 0 must give a number"),
        (["a", "a=8080"], "gives a twice: each port has a name of its own"),
        (["a=8080", "b=8080"], "gives 8080 twice"),
        ([f"p{number}" for number in range(17)], "names 17 ports, the limit is 16"),
    ],
)
def test_what_is_no_port_is_said(ports: Any, what: str) -> None:
    with pytest.raises(InvalidSpec) as fault:
        check_spec({"command": ["true"], "ports": ports})
    assert [problem.where for problem in fault.value.problems] == ["ports"]
    assert fault.value.problems[0].what.startswith(what)


def test_fixed_ports_are_matched_one_by_one_and_others_by_their_number() -> None:
    ask = ask_of(
        check_spec({"command": ["true"], "ports": ["http", "admin=8080"], "resources": {"licence": 2}})
    )
    assert ask.resources == ((LEASED, 1), ("licence", 2), ("port 8080", 1))
    assert "ports" in ask.features
    plain = ask_of(check_spec({"command": ["true"]}))
    assert (plain.features, plain.resources) == ((), ())


def test_variables_name_every_port_and_the_first_one_twice() -> None:
    assert port_variables(["http", "grpc-web"], [20001, 20002]) == {
        "DRAY_PORT": "20001",
        "DRAY_PORT_HTTP": "20001",
        "DRAY_PORT_GRPC_WEB": "20002",
    }
    assert name_ports(["http", "admin=8080"], [20001, 8080]) == {"http": 20001, "admin": 8080}


@pytest.mark.parametrize("text", ["", "20000", "30000-20000", "80-90", "20000-70000", "a-b"])
def test_a_range_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="FIRST-LAST"):
        read_span(text)


def test_a_range_holds_both_its_ends() -> None:
    assert read_span("20000-20002") == range(20000, 20003)
