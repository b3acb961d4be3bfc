"""The commands `advise`: what a job could do better, and what is to be expected of the site's demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from dray.cli.base.hub import job_path
from dray.cli.base.invocation import HubCommand, LazyGroup, Session, pass_session
from dray.cli.base.render import Column, clean, draw_table, has_colour, terminal_width

_HERE = "dray.cli.site.advise"


class _Advise(LazyGroup):
    """A word that is no command is a job: `dray advise JOB`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        named = bool(args) and (args[0] in self.table or args[0].startswith("-"))
        return super().resolve_command(ctx, args if named else ["job", *args])


@click.group(
    "advise",
    cls=_Advise,
    table={
        "job": (f"{_HERE}:advise_job", "Say what a job could do better; `dray advise JOB` is the same."),
        "demand": (f"{_HERE}:advise_demand", "Foretell how many GPUs will be wanted at once."),
        "capacity": ("dray.cli.site.studies:capacity", "Say what further workers would have brought."),
    },
)
def advise() -> None:
    """Say what a job asks for and does not use, and what the site is to expect.

    \b
      dray advise JOB
      dray advise demand
      dray advise capacity
    """


@click.command("job", cls=HubCommand)
@click.argument("job")
@pass_session
def advise_job(session: Session, job: str) -> None:
    """Say what a job could do better: what it asks for beside what it has used, and what would let it start.

    Only what was measured or tried is said: nothing of memory, cores or GPUs where nobody could look.
    """
    answer = session.hub.get(job_path(job, "/advice"))
    if session.json:
        session.print_json(answer)
        return
    print(draw_advice(answer))


@click.command("demand", cls=HubCommand)
@pass_session
def advise_demand(session: Session) -> None:
    """Foretell how many GPUs will be wanted at once, by kind of ask, from what was wanted in the last two weeks.

    Wanted is what waits and what runs. ERROR is how far such forecasts were off in the past week, in the mean; of ten
    values eight lay between P10 and P90.
    """
    answer = session.hub.get("/advice/demand")
    if session.json:
        session.print_json(answer)
        return
    print(draw_demand(answer))


def draw_advice(answer: Mapping[str, Any]) -> str:
    """Each piece of advice with the flag that follows it."""
    head = f"{clean(answer['job_id'])} ({clean(answer['state'])})"
    lines = [f"{head}: {clean(answer['waits'])}" if answer["waits"] else head]
    for one in answer["advice"]:
        flag = f" [{one['flag']} {one['value']}]" if one["flag"] else ""
        lines.append(f"  {one['about']}: {clean(one['message'])}{flag}")
    if not answer["advice"]:
        known = answer["used"]["ran_s"] or answer["runs"]
        lines.append(
            "  nothing to mend"
            if known
            else "  nothing is known yet: it has not run, nor has any of its name"
        )
    return "\n".join(lines)


def draw_demand(answer: Mapping[str, Any]) -> str:
    """A row for each kind of ask and hours ahead."""
    if not any(one["ahead"] for one in answer["kinds"]):
        return f"too little is known: {answer['known_h']} h of work, and a forecast needs a day of it"
    columns = (
        Column("GPUS ASKED", least=6, cosy=20),
        Column("NOW", right=True),
        Column("IN", right=True),
        Column("WANTED", right=True),
        Column("P10", drop=2, right=True),
        Column("P90", drop=1, right=True),
        Column("ERROR", right=True),
    )
    rows = []
    for one in answer["kinds"]:
        for place, said in enumerate(one["ahead"]):
            name, now = (clean(one["kind"]), f"{one['now']:g}") if not place else ("", "")
            error = "?" if said["error"] is None else f"{said['error']:.0%}"
            values = (f"{said[key]:.1f}" for key in ("cards", "p10", "p90"))
            rows.append([name, now, f"{said['in_h']} h", *values, error])
    return "\n".join(
        [draw_table(columns, rows, terminal_width(), has_colour()), f"Assumed: {answer['assumes']}."]
    )
