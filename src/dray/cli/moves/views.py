"""How moves look to a person who ordered one, or whose work goes elsewhere; reads documents and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.cli.base.render import (
    Column,
    clean,
    draw_pairs,
    draw_table,
    local_time,
    short_span,
    span_between,
    tell_money,
    terminal_width,
)

Document = Mapping[str, Any]
COLUMNS = (
    Column("MOVE"),
    Column("AGE", right=True, drop=1),
    Column("TASK", least=8, cosy=16),
    Column("FROM", least=4, cosy=10),
    Column("TO", least=4, cosy=10),
    Column("CAUSE"),
    Column("STAGE"),
    Column("LOST", right=True, drop=2),
    Column("NOTE", least=8, drop=3, cosy=20),
)
OTHERS = "(another's)"
_STAGES = {
    "claimed": "its place there is kept as it comes free",
    "saving": "asked to stop, and has {left} left to save its work",
    "starting": "has stopped, and starts there",
    "settling": "runs there; its old place is kept for a moment still",
    "done": "runs there",
    "returning": "could not start there, and goes back",
    "rolled_back": "runs in its old place again",
    "called_off": "stays where it is",
    "failed": "waits like any other",
}


def draw_moves(moves: Sequence[Document]) -> str:
    """A table of moves, a line for each task."""
    rows = [_row(move, task) for move in moves for task in move["tasks"]]
    return draw_table(COLUMNS, rows, terminal_width())


def _row(move: Document, task: Document) -> list[str]:
    return [
        str(move["id"]),
        span_between(move.get("decided_at"), None),
        str(task.get("task_id") or OTHERS),
        str(task["from"]),
        str(task["to"]),
        str(move["cause"]),
        str(task["stage"]).replace("_", " "),
        short_span(task["lost_s"]) if task.get("lost_s") else "-",
        clean(str(task.get("note") or "")) or "-",
    ]


def draw_move(move: Document) -> str:
    """One move, whole."""
    ended = local_time(move.get("ended_at"))
    pairs = [
        ("move", f"{move['id']}, {str(move['status']).replace('_', ' ')}"),
        ("cause", str(move["cause"]) + (f", ordered by {move['by']}" if move.get("by") else "")),
        ("why", str(move.get("why") or "")),
        ("decided", local_time(move.get("decided_at"))),
        ("ended", ended if move.get("ended_at") else ""),
        ("foretold", _tell_amounts(move)),
        ("won", "" if move.get("won") is None else _amount(move, move["won"])),
    ]
    lines = [draw_pairs([(name, clean(value)) for name, value in pairs if value])]
    return "\n".join([*lines, "", *(tell_step(move, task) for task in move["tasks"])])


def _tell_amounts(move: Document) -> str:
    if move.get("foretold_gain") is None:
        return ""
    return (
        f"wins {_amount(move, move['foretold_gain'])}, costs {_amount(move, move.get('foretold_cost') or 0)}"
    )


def _amount(move: Document, value: float) -> str:
    if move.get("unit") == "money":
        return tell_money(value)
    return f"{'-' if value < 0 else ''}{short_span(abs(value))} of a card"


def tell_step(move: Document, task: Document) -> str:
    """How far one task of a move is, in a line."""
    left = task.get("grace_left_s")
    text = _STAGES.get(str(task["stage"]), "").format(left=short_span(left or 0))
    note = f" ({clean(str(task['note']))})" if task.get("note") else ""
    name = task.get("task_id") or OTHERS
    stage = str(task["stage"]).replace("_", " ")
    return f"{move['id']}: {name}, {task['from']} to {task['to']}: {stage}, {text}{note}"


def tell_ordered(answer: Document) -> str:
    """What was ordered for one job."""
    parts = [
        f"{task.get('task_id')} goes from {task['from']} to {task['to']}, move {move['id']}"
        for move in answer["moves"]
        for task in move["tasks"]
    ]
    return "; ".join(parts) or "it stays where it is: its place was taken meanwhile, ask again"


PLAN_COLUMNS = (
    Column("TASK", least=8, cosy=16),
    Column("FROM", least=4, cosy=10),
    Column("TO", least=4, cosy=10),
    Column("CAUSE"),
    Column("WINS", right=True),
    Column("COSTS", right=True),
    Column("VERDICT", least=12, cosy=40),
)


def draw_plan(plan: Document) -> str:
    """What would be moved, and what would not, a line for each task."""
    rows = []
    for one in plan["proposals"]:
        for task in one["tasks"]:
            gain, cost = one.get("foretold_gain"), one.get("foretold_cost")
            verdict = (
                f"stays: {one['refused']}"
                if one.get("refused")
                else f"moves: {one.get('why') or one['cause']}"
            )
            amounts = ["-" if value is None else _amount(one, value) for value in (gain, cost)]
            rows.append([task["task_id"], task["from"], task["to"], one["cause"], *amounts, clean(verdict)])
    return draw_table(PLAN_COLUMNS, rows, terminal_width())


def draw_standing(answer: Document) -> str:
    """How the rebalancer stands."""
    quiet = ", quiet hours" if answer.get("quiet") else ""
    modes = {
        "off": "off: nothing is moved by itself",
        "advise": "advises: `dray rebalance plan` tells what would be moved",
        "on": "on: work is moved by itself",
    }
    pairs = [("mode", modes.get(str(answer["mode"]), str(answer["mode"])) + quiet)]
    pairs += [(str(one["cause"]), _tell_strategy(one)) for one in answer["strategies"]]
    return draw_pairs(pairs)


def _tell_strategy(one: Document) -> str:
    if not one["moves"]:
        return "no moves yet"
    ends = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in one["by_status"].items())
    parts = [
        f"{one['moves']} move{'' if one['moves'] == 1 else 's'} ({ends}), {short_span(one['lost_s'])} of work lost"
    ]
    if one.get("won") is not None:
        parts.append(f"won {_amount(one, one['won'])} of {_amount(one, one.get('foretold') or 0)} foretold")
    if one.get("only_advises"):
        parts.append(str(one["only_advises"]))
    return "; ".join(parts)
