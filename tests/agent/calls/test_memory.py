"""A call that takes more memory than its job asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.agent.calls.call_hub import CallHub


def test_a_call_that_runs_away_with_memory_is_ended_and_says_so(hub: CallHub) -> None:
    def hoard() -> int:
        kept = [bytearray(b"x" * (10 << 20)) for _ in range(200)]
        return len(kept)

    hub.start_agent(1)
    state, fault, (exit_class, _) = hub.call(hoard, memory_bytes=300 << 20)
    assert state == "failed"
    assert exit_class == "oom" or isinstance(fault, MemoryError)
    assert hub.call(lambda: 1)[:2] == ("succeeded", 1)
