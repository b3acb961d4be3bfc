"""Versions of the hub and of agents, held against each other."""

from __future__ import annotations

import pytest

from dray.cli.machines.cluster import judge_agent


@pytest.mark.parametrize(
    ("hub", "agent", "words"),
    [
        ("0.3.1", "0.3.0", ""),
        ("0.3.0", "0.2.9", ""),
        ("0.4.0", "0.2.9", "more than one minor"),
        ("0.3.0", "0.4.0", "upgrade the hub first"),
        ("1.0.0", "0.9.0", "more than one minor"),
        ("0.3.0", "", "older than those"),
        ("0.3.0", "0.3.0.dev1", ""),
        ("0.3.0", "unknown", ""),
    ],
)
def test_an_agent_may_be_one_minor_version_behind_its_hub_and_never_ahead(
    hub: str, agent: str, words: str
) -> None:
    said = judge_agent(hub, agent)
    assert words in said
    assert bool(words) is bool(said)
