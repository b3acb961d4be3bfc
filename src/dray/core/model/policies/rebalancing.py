"""The policy's section on moving work that runs for its own sake."""

from __future__ import annotations

import re

import msgspec

MODES = ("off", "advise", "on")
STRATEGIES = ("performance", "cost")


class RebalancePolicy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Whether work is moved to where it gains: never, only as advice that is made when somebody asks, or by itself.

    `strategies`: for these gains; none named: for all of them.

    Within `window_s` each task is moved once, and so many tasks of a user, of a workload and of everybody; at most
    `in_flight` of the cards that work are on the move. What has run less than `min_run_s` stays, and in `quiet_hours`
    (UTC) everybody does. By itself work is moved when there was more to gain than `high` on three looks in a row, a
    minute apart, and is foreseen to be in half an hour; and then again once it was less than `low`.
    """

    mode: str = "advise"
    strategies: tuple[str, ...] = ()
    window_s: float = 3600
    moves: int = 20
    per_user: int = 5
    per_workload: int = 10
    in_flight: float = 0.1
    min_run_s: float = 600
    quiet_hours: tuple[str, ...] = ()
    high: float = 0.1
    low: float = 0.05


def quiet_problem(value: object) -> str:
    """What is wrong with quiet hours as they are written; nothing where they are sound."""
    if isinstance(value, str) and re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", value):
        return ""
    return "must be a span of hours such as 22:00-06:00, in UTC"
