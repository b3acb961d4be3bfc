"""Hub time: milliseconds that never run backwards, carried across restarts.

It follows the monotonic clock of the machine, shifted so that it continues where the last hub stopped. Within one
boot the shift is kept, so downtime counts; after a reboot, or once another machine has led, hub time simply goes on.
Wall time is read for people only: setting it back or forward moves no timer.
"""

from __future__ import annotations

import time
from pathlib import Path

from dray.core.lifecycle.state.events import Clock
from dray.hub.engine.recovery import Recovered


class HubClock:
    """Reads both clocks. `base` is what a later hub needs to go on: boot id, shift, and the epoch it is of."""

    def __init__(self, recovered: Recovered, epoch: int) -> None:
        boot, monotonic_ms = boot_id(), time.monotonic_ns() // 1_000_000
        self._shift_ms = find_shift(recovered, boot, monotonic_ms)
        self.base = spell_base(boot, self._shift_ms, epoch)

    def read(self) -> Clock:
        """Read the time of a turn: once, for all that happens in it."""
        return Clock(time.monotonic_ns() // 1_000_000 + self._shift_ms, time.time_ns() // 1_000_000)


def find_shift(recovered: Recovered, boot: str, monotonic_ms: int) -> int:
    """How far hub time is ahead of a machine's own: on from where it stood, or as before within one boot.

    As before only where nobody has led since: a later hub on another machine may have had its turns kept and its base
    lost, and by the older one time would jump.
    """
    goes_on_ms = recovered.now_ms + 1 - monotonic_ms
    stored_boot, *numbers = recovered.clock_base.decode(errors="replace").split("|")
    if not boot or stored_boot != boot or not all(number.lstrip("-").isdigit() for number in numbers):
        return goes_on_ms
    match [int(number) for number in numbers]:
        case [shift_ms]:  # of a version that kept no epoch
            return max(goes_on_ms, shift_ms)
        case [shift_ms, epoch] if epoch >= recovered.epoch:
            return max(goes_on_ms, shift_ms)
    return goes_on_ms


def spell_base(boot: str, shift_ms: int, epoch: int) -> bytes:
    """What is stored of that."""
    return f"{boot}|{shift_ms}|{epoch}".encode()


def boot_id() -> str:
    """Name this boot of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
