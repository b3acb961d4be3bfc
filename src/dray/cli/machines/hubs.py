"""Commands about the hubs of one store: who leads, who stands by, and handing over."""

from __future__ import annotations

import click

from dray.cli.base.invocation import HubCommand, Session, pass_session


@click.command("ls", cls=HubCommand)
@pass_session
def hub_ls(session: Session) -> None:
    """List the hub that leads and those that stand by, on the same database.

    SEEN is how long ago a hub said that it is there; one that is silent for long drops out. LAG is how many turns it
    has not folded in yet: one that takes over reads them first. A hub that keeps its store in its home is alone.
    """
    answer = session.hub.get("/hubs")
    if session.json:
        session.print_json(answer)
        return
    from dray.cli.machines.views import draw_hubs

    print(draw_hubs(answer.get("hubs") or []))


@click.command("status", cls=HubCommand)
@pass_session
def hub_status(session: Session) -> None:
    """Say whether the hub that answers leads or stands by, since when, and how it last came to lead.

    That is the hub of this home, or the one that --hub names.
    """
    answer = session.hub.get("/hub/status")
    if session.json:
        session.print_json(answer)
        return
    from dray.cli.machines.views import draw_role

    print(draw_role(answer))


@click.command("resign", cls=HubCommand)
@pass_session
def hub_resign(session: Session) -> None:
    """Hand over to a hub that stands by, at once; tasks go on (needs admin).

    Before work on its machine, say. This hub stands by from then on. Refused where no other hub stands by.
    """
    answer = session.hub.call("POST", "/hub/resign")
    if session.json:
        session.print_json(answer)
        return
    names = ", ".join(str(hub.get("id")) for hub in answer.get("standbys") or [])
    print(f"the hub hands over; one of these leads within a second: {names}")
