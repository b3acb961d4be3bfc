"""Hub time: milliseconds that never run backwards, carried across restarts.

It follows the monotonic clock of the machine, shifted so that it continues where the last hub stopped. Within one
boot the shift is kept, so downtime counts; after a reboot hub time simply goes on. Wall time is read for people
only: setting it back or forward moves no timer.
"""

from __future__ import annotations

import time
from pathlib import Path

from dray.core.lifecycle.state.events import Clock


class HubClock:
    """Reads both clocks. `base` is what a later hub needs to go on: boot id and shift."""

    def __init__(self, last_now_ms: int, stored_base: bytes) -> None:
        boot, monotonic_ms = boot_id(), time.monotonic_ns() // 1_000_000
        self._shift_ms = find_shift(last_now_ms, stored_base, boot, monotonic_ms)
        self.base = spell_base(boot, self._shift_ms)

    def read(self) -> Clock:
        """Read the time of a turn: once, for all that happens in it."""
        return Clock(time.monotonic_ns() // 1_000_000 + self._shift_ms, time.time_ns() // 1_000_000)


def find_shift(last_now_ms: int, stored_base: bytes, boot: str, monotonic_ms: int) -> int:
    """How far hub time is ahead of a machine's own: on from where it stood, or as before within one boot."""
    stored_boot, _, shift = stored_base.decode(errors="replace").rpartition("|")
    same_boot = bool(boot) and stored_boot == boot and shift.lstrip("-").isdigit()
    goes_on_ms = last_now_ms + 1 - monotonic_ms
    return max(goes_on_ms, int(shift)) if same_boot else goes_on_ms


def spell_base(boot: str, shift_ms: int) -> bytes:
    """What is stored of that."""
    return f"{boot}|{shift_ms}".encode()


def boot_id() -> str:
    """Name this boot of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
