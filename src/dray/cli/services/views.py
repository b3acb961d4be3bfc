"""How services look to a person; reads documents of the API and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    has_colour,
    span_between,
    terminal_width,
)
from dray.cli.jobs.job_views import tell_ready, tell_share

Document = Mapping[str, Any]
SERVICE_COLUMNS = (
    Column("ID"),
    Column("NAME", least=6, cosy=16),
    Column("READY", right=True),
    Column("USER", least=5, drop=2, cosy=8),
    Column("AGE", drop=1, right=True),
    Column("COMMAND", least=10, drop=3, cosy=24),
    Column("DETAIL", least=14, cosy=24),
)
REPLICA_COLUMNS = (
    Column("REPLICA"),
    Column("HEALTH"),
    Column("WORKER", least=6, cosy=12),
    Column("RUN", drop=1, right=True),
    Column("ADDRESS", drop=2),
    Column("RESTARTS", drop=3, right=True, dull="0"),
    Column("DETAIL", least=14, cosy=24),
)
# Of replicas of several nodes, after their names.
MEMBER_COLUMNS = (Column("GROUP", right=True), Column("RANK", right=True))
REVISION_COLUMNS = (
    Column("REVISION", right=True),
    Column("KIND"),
    Column("USER", least=5, drop=2, cosy=8),
    Column("AGE", drop=1, right=True),
    Column("OUTCOME"),
    Column("COMMAND", least=10, drop=3, cosy=24),
    Column("DETAIL", least=14, cosy=24),
)
ENDPOINT_COLUMNS = (Column("REPLICA"), Column("WORKER"), Column("ADDRESS"), Column("PORTS"))


def draw_services(services: Sequence[Document]) -> str:
    """The table of `service ls`."""
    rows = [
        [
            str(one["id"]),
            str(one["name"] or "-"),
            f"{one['ready']}/{one['replicas']}",
            str(one["user"]),
            span_between(one.get("submitted_at"), None) or "-",
            clean(shlex.join(one["command"])),
            clean(_detail(one)),
        ]
        for one in services
    ]
    return draw_table(SERVICE_COLUMNS, rows, terminal_width(), has_colour())


def _detail(one: Document) -> str:
    """What is wrong, where something is: that all are ready is said by the numbers."""
    return str(one["summary"]).partition("; ")[2]


def draw_service(document: Document) -> str:
    """A service with its replicas."""
    nodes = document.get("nodes", 1)
    pairs = [
        ("id", document["id"]),
        ("name", document["name"] or "-"),
        ("user", document["user"]),
        ("command", clean(shlex.join(document["command"]))),
        ("nodes", f"{nodes} for each replica" if nodes > 1 else ""),
        ("replicas", tell_ready(document)),
        ("revision", str(document["revision"]) if document["revision"] > 1 or document["update"] else ""),
        ("update", clean(str(document["update"]))),
    ]
    if document.get("share"):
        pairs.append(("shared", tell_share(document["share"])))
    rows = [
        [
            str(one["id"]),
            *([str(one["group"]), str(one["rank"])] if nodes > 1 else []),
            str(one["health"]),
            str(one["worker"] or "-"),
            span_between(one.get("started_at"), None) or "-",
            _place(one) or "-",
            str(one["restarts"]),
            clean(str(one["message"])),
        ]
        for one in document["replica_list"]
    ]
    columns = (*REPLICA_COLUMNS[:1], *MEMBER_COLUMNS, *REPLICA_COLUMNS[1:]) if nodes > 1 else REPLICA_COLUMNS
    table = draw_table(columns, rows, terminal_width(), has_colour()) if rows else ""
    return "\n".join(filter(None, (draw_pairs(pairs), table)))


def draw_revisions(revisions: Sequence[Document]) -> str:
    """The table of `service history`."""
    rows = [
        [
            str(one["number"]),
            str(one["kind"]),
            str(one["user"]),
            span_between(one.get("at"), None) or "-",
            _outcome(one),
            clean(shlex.join(one["command"])),
            clean(str(one["why"])),
        ]
        for one in revisions
    ]
    return draw_table(REVISION_COLUMNS, rows, terminal_width(), has_colour())


def _outcome(one: Document) -> str:
    said = str(one["outcome"] or "under_way").replace("_", " ")
    return "current" if one["current"] and said == "done" else said


def draw_endpoints(endpoints: Sequence[Document]) -> str:
    """The table of `service endpoints`."""
    rows = [
        [
            str(one["id"]),
            str(one["worker"]),
            str(one["address"] or "-"),
            _ports(one) or "-",
        ]
        for one in endpoints
    ]
    return draw_table(ENDPOINT_COLUMNS, rows, terminal_width(), has_colour())


def _place(one: Document) -> str:
    return " ".join(filter(None, (str(one["address"] or ""), _ports(one))))


def _ports(one: Document) -> str:
    return " ".join(f"{name}={port}" for name, port in one["ports"].items())
