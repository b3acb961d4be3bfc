"""Calls through a real agent, its supervisor and its runners."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.agent.calls.call_hub import CallHub


def test_calls_run_and_their_results_come_back(hub: CallHub) -> None:
    hub.start_agent()
    hub.assign("1-1", "j", lambda x: x * x, [(n,) for n in range(20)])
    assert hub.end("j", 0)[2][1] == ""
    assert [hub.end("j", n)[:2] for n in range(20)] == [("succeeded", n * n) for n in range(20)]
