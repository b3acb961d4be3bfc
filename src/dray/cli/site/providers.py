"""The commands `provider`: what workers of each provider cost, and how it goes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    local_time,
    short_span,
    tell_money,
    terminal_width,
)

_HERE = "dray.cli.site.providers"
Document = Mapping[str, Any]
_COLUMNS = (
    Column("PROVIDER", least=8, cosy=16),
    Column("HEALTH"),
    Column("HERE", right=True),
    Column("PRICE/H", least=6, cosy=20),
    Column("SUCCESS", right=True),
    Column("LOST/DAY", drop=2, right=True),
    Column("START P50", drop=3, right=True),
    Column("P90", drop=4, right=True),
    Column("PER SUCCESS", drop=1, right=True),
    Column("SPENT", drop=5, right=True),
)


@click.group(
    "provider",
    cls=LazyGroup,
    table={
        "ls": (f"{_HERE}:provider_ls", "List providers."),
        "show": (f"{_HERE}:provider_show", "Show a provider."),
        "rank": ("dray.cli.jobs.plan:rank", "Rank providers for a job by its money and time."),
    },
)
def provider() -> None:
    """List and show providers, the values of the worker label `provider`.

    Prices come from the policy; everything else is measured, and what is a week old counts half.
    """


@click.command("ls", cls=HubCommand)
@pass_session
def provider_ls(session: Session) -> None:
    """List providers: what they cost, whether it goes well there, and what a success has cost.

    HERE is how many of its workers are heard; SUCCESS leaves users' own failures aside; LOST/DAY are losses per
    worker-day; START is from being given out to the start. Nothing new goes to a bad one while it fits elsewhere.
    """
    answer = session.hub.get("/providers")
    if session.json:
        session.print_json(answer)
        return
    rows = [_draw_row(one) for one in answer["providers"]]
    print(draw_table(_COLUMNS, rows, terminal_width(), has_colour()))


@click.command("show", cls=HubCommand)
@click.argument("name")
@pass_session
def provider_show(session: Session, name: str) -> None:
    """Show a provider: its prices, its health and why, and how fast which jobs run on its cards (for admins)."""
    document = session.hub.get("/provider", {"name": name})
    if session.json:
        session.print_json(document)
        return
    print(draw_provider(document))


def draw_provider(one: Document) -> str:
    """All that `provider show` tells."""
    lost, days = one["losses_per_day"], one["worker_days"]
    pairs = [
        ("provider", clean(one["name"]) + ("" if one["listed"] else " (not named in the policy)")),
        ("health", _tell_health(one)),
        ("workers", f"{one['workers_here']} here of {one['workers']}{_tell_types(one['gpu_types'])}"),
        ("price", tell_price(one, len(one["price_per_gpu_hour"]))),
        ("egress", f"{one['egress_per_gb']:g} per GB" if one["egress_per_gb"] else ""),
        ("spot", "its machines may be taken away at any time" if one["spot"] else ""),
        ("success", _tell_success(one)),
        ("losses", f"{lost:.2f} per worker-day, of {days:.1f} worker-days that count"),
        ("start", _tell_start(one)),
        ("spent", _tell_spent(one)),
    ]
    shown = draw_pairs([(key, text) for key, text in pairs if text])
    if not one["speeds"]:
        return shown
    columns = (
        Column("JOB NAME", least=8, cosy=20), Column("GPU"), Column("RUN", right=True), Column("STEPS/S", right=True)
    )  # fmt: skip
    rows = [
        [
            clean(speed["job_name"]),
            clean(speed["gpu_type"]),
            short_span(speed["run_s"]) if speed["run_s"] else "-",
            f"{speed['steps_per_s']:.3g}" if speed["steps_per_s"] else "-",
        ]
        for speed in one["speeds"]
    ]
    return f"{shown}\n\n{draw_table(columns, rows, terminal_width(), has_colour())}"


def _draw_row(one: Document) -> list[str]:
    starts = [one["start_p50_s"], one["start_p90_s"]]
    spent = one["money_per_success"]
    return [
        clean(one["name"]),
        one["health"],
        f"{one['workers_here']}/{one['workers']}",
        tell_price(one),
        f"{one['success']:.1%}",
        f"{one['losses_per_day']:.2f}",
        *(short_span(start) if start is not None else "-" for start in starts),
        tell_money(spent) if spent is not None else "-",
        tell_money(one["money"]),
    ]


def tell_price(one: Document, most: int = 2) -> str:
    """What an hour costs: of cards by their types, else of a whole worker."""
    cards: Sequence[tuple[str, float]] = sorted(one["price_per_gpu_hour"].items())
    if not cards:
        return f"{one['price_per_hour']:g} a worker" if one["price_per_hour"] else "free"
    told = ", ".join(f"{clean(name)} {price:g}" for name, price in cards[:most])
    more = len(cards) - most
    return f"{told} +{more}" if more > 0 else told


def _tell_health(one: Document) -> str:
    since = f" since {local_time(one['since'])}" if one["since"] and one["health"] != "ok" else ""
    return f"{one['health']}{since}{': ' + clean(one['why']) if one['why'] else ''}"


def _tell_success(one: Document) -> str:
    if not one["succeeded"]:
        return "nothing has succeeded there yet"
    return f"{one['success']:.1%} of what ran there, users' own failures aside"


def _tell_types(types: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{count} {clean(kind)}' for kind, count in types.items())})" if types else ""


def _tell_start(one: Document) -> str:
    if one["start_p50_s"] is None:
        return ""
    return (
        f"half within {short_span(one['start_p50_s'])}, nine of ten within {short_span(one['start_p90_s'])}"
    )


def _tell_spent(one: Document) -> str:
    each = one["money_per_success"]
    return tell_money(one["money"]) + (f", {tell_money(each)} per success" if each is not None else "")
