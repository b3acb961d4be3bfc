"""The numbers that lifecycle decisions depend on, times in milliseconds, with the protocol's defaults.

Settings take their defaults from here. No `msgspec`: what reads settings has to start at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Timers of the worker protocol. Times are hub time: a clock that never runs backwards."""

    suspect_ms: int = 25_000
    unknown_ms: int = 40_000
    lost_ms: int = 120_000
    lost_service_ms: int = 60_000
    start_grace_ms: int = 120_000
    accept_ms: int = 30_000
    resend_ms: tuple[int, ...] = (2_000, 4_000, 8_000)
    stop_again_ms: int = 30_000
    pause_ms: int = 1_000
    longest_pause_ms: int = 60_000
    quarantine_failures: int = 3
    quarantine_window_ms: int = 60_000
    at_once_ms: int = 10_000
    quarantine_ms: int = 60_000
    longest_quarantine_ms: int = 3_600_000
    limit_margin_ms: int = 5_000
    brake_share: float = 0.5
    brake_window_ms: int = 60_000
    brake_min: int = 3
    flap_window_ms: int = 20_000
    flap_takeovers: int = 4
    flap_refuse_ms: int = 60_000
    pass_placements: int = 2_000
    progress_per_s: int = 200
    open_idle_ms: int = 60_000
    linger_ms: int = 50
    slice_ms: int = 1_000
    ahead_ms: int = 25
    behind_ms: int = 250
    restart_ms: int = 1_000
    longest_restart_ms: int = 300_000
    well_ms: int = 600_000
    loop_ends: int = 5
    loop_window_ms: int = 600_000
    most_ills: int = 3
    # Shares of what ended lately: above the first a provider is that, and below the second no longer.
    provider_bad: tuple[float, float] = (0.5, 0.3)
    provider_degraded: tuple[float, float] = (0.25, 0.15)
    provider_faults: int = 3
    provider_half_ms: int = 3_600_000
    provider_look_ms: int = 300_000
    launch_look_ms: int = 5_000
