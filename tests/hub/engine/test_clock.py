"""Where hub time goes on after a restart, a reboot, and the lead of another machine."""

from __future__ import annotations

import pytest

from dray.core.lifecycle.state.state import State
from dray.core.lifecycle.state.timings import Rules
from dray.hub.engine.clock import find_shift, spell_base
from dray.hub.engine.recovery import Recovered

BOOT = "5f1c"


def recovered(base: bytes, epoch: int) -> Recovered:
    """Hub time stood at 10 s, in a turn of that epoch."""
    return Recovered(State(Rules()), 7, epoch, 10_000, base, [])


@pytest.mark.parametrize(
    ("base", "epoch", "shift_ms"),
    [
        (spell_base(BOOT, -50_000, 3), 3, -50_000),  # the same boot: the 30 s without a hub count
        (spell_base(BOOT, -50_000, 4), 3, -50_000),  # a hub that began and committed nothing
        (spell_base(BOOT, -50_000, 3), 0, -50_000),  # no turn is left in the log
        (b"5f1c|-50000", 3, -50_000),  # written before epochs were
        (spell_base("another", -50_000, 3), 3, -79_999),  # time goes on from 10.001 s
        (spell_base(BOOT, -50_000, 3), 4, -79_999),  # another machine has led since, and its base was lost
        (spell_base(BOOT, -85_000, 3), 3, -79_999),  # never back
        (b"", 0, -79_999),
        (b"5f1c", 3, -79_999),
        (b"5f1c|x|3", 3, -79_999),
        (b"5f1c|1|2|3", 3, -79_999),
    ],
)
def test_hub_time_goes_on(base: bytes, epoch: int, shift_ms: int) -> None:
    assert find_shift(recovered(base, epoch), BOOT, 90_000) == shift_ms


def test_a_machine_that_cannot_name_its_boot_goes_on() -> None:
    assert find_shift(recovered(spell_base("", -50_000, 3), 3), "", 90_000) == -79_999
