"""The command `sim`: a trace, or this hub's own history, replayed under one policy or several side by side.

Needs no hub: everything is read from files. The replay itself is `dray.sim.traces`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dray.cli.base.invocation import HomeCommand, Session, pass_session
from dray.core.model.units import parse_seconds
from dray.errors import InvalidInput

if TYPE_CHECKING:
    from dray.core.model.policies.policy import Policy
    from dray.sim.traces.failures import Failure
    from dray.sim.traces.pages import Replay
    from dray.sim.traces.workload import Node, TraceJob

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("sim", cls=HomeCommand)
@click.argument("trace", required=False, type=_FILE, metavar="[TRACE.csv]")
@click.option("--cluster", metavar="8x8|NODES.csv", help="Nodes x GPUs, or a file with one row per node.")
@click.option("--policy", "policies", multiple=True, type=_FILE, help="Policy file; several are compared.")
@click.option("--compare", is_flag=True, help="Compare the policy files that follow, and the default policy.")
@click.argument("more", nargs=-1, type=_FILE, metavar="[POLICY.yaml]...")
@click.option("--history", is_flag=True, help="Replay what this home's hub has stored instead of a trace.")
@click.option(
    "--since", default="7d", show_default=True, metavar="SPAN", help="How far back the history goes."
)
@click.option(
    "--fail-every", type=float, default=0, metavar="HOURS", help="Each worker fails about so often."
)
@click.option(
    "--repair", type=float, default=1, show_default=True, metavar="HOURS", help="And is away so long."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the failures.")
@click.option("--turn", default="0", metavar="SPAN", help="Fold in together what happens within so long.")
@click.option("--html", type=_FILE, metavar="FILE", help="Write one self-contained page with plots.")
@pass_session
def sim(session: Session, **given: Any) -> None:
    """Replay work in virtual time with the scheduler that runs live, and say how it would have gone.

    \b
      dray sim trace.csv --cluster 8x8 --policy fair.yaml
      dray sim trace.csv --cluster nodes.csv --compare fifo.yaml sjf.yaml --html report.html
      dray sim --history --since 7d --policy other.yaml
    """
    more: list[Path] = list(given["more"])
    if given["history"] and given["trace"] is not None:
        more.insert(0, given["trace"])
    policies = [*given["policies"], *more]
    if more and not given["compare"]:
        raise InvalidInput(f"{more[0]} stands alone: give a policy with --policy, or several with --compare")
    jobs, nodes, absences = _read(session, given)
    named = _name(policies, given["compare"])
    failures = [*absences, *_draw(jobs, nodes, given)]
    turn_ms = round(parse_seconds(given["turn"]) * 1000)
    replays = [_replay(name, policy, jobs, nodes, (failures, turn_ms)) for name, policy in named]
    _write(session, given["html"], replays)


def _read(session: Session, given: dict[str, Any]) -> tuple[list[TraceJob], list[Node], list[Failure]]:
    from dray.sim.traces.readers import parse_cluster, read_jobs
    from dray.sim.traces.workload import check_workload

    absences: list[Failure] = []
    if given["history"]:
        from dray.sim.traces.history import read_history

        since_ms = round((time.time() - parse_seconds(given["since"])) * 1000)
        jobs, nodes, absences = read_history(session.home, since_ms)
        if given["cluster"]:
            nodes, absences = parse_cluster(given["cluster"]), []
    else:
        if given["trace"] is None or not given["cluster"]:
            raise InvalidInput("what to replay? give a trace and --cluster, or --history")
        jobs, nodes = read_jobs(given["trace"]), parse_cluster(given["cluster"])
    check_workload(jobs, nodes)
    return jobs, nodes, absences


def _name(paths: Sequence[Path], compare: bool) -> list[tuple[str, Policy]]:
    from dray.core.model.policies.policy import Policy
    from dray.hub.decisions.policy import read_policy_file

    found = [(path.stem, read_policy_file(path).policy) for path in paths]
    if not found or (compare and len(found) == 1):
        found.insert(0, ("default", Policy()))
    return found


def _draw(jobs: Sequence[TraceJob], nodes: Sequence[Node], given: dict[str, Any]) -> list[Failure]:
    if given["fail_every"] <= 0:
        return []
    from dray.sim.traces.failures import draw_failures

    until_ms = max(job.arrival_ms + job.duration_ms for job in jobs) * 2
    return draw_failures(
        nodes, until_ms, every_h=given["fail_every"], repair_h=max(0.001, given["repair"]), seed=given["seed"]
    )


def _replay(
    name: str,
    policy: Policy,
    jobs: list[TraceJob],
    nodes: list[Node],
    course: tuple[list[Failure], int],
) -> Replay:
    failures, turn_ms = course
    from dray.sim.traces.figures import measure
    from dray.sim.traces.pages import Replay
    from dray.sim.traces.world import World

    bar = _Bar(name)
    try:
        ledger = World(nodes, policy, failures=failures, turn_ms=turn_ms, progress=bar.show).run(jobs)
    finally:
        bar.clear()
    return Replay(name, measure(ledger), ledger)


class _Bar:
    """One line on a terminal that is rewritten and wiped away; nothing where nobody watches."""

    WIDTH = 30

    def __init__(self, name: str) -> None:
        self._name, self._live = name, sys.stderr.isatty()
        self._shown = 0.0

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._live or now - self._shown < 0.1:
            return
        self._shown = now
        full = self.WIDTH * done // max(1, total)
        bar = "#" * full + "." * (self.WIDTH - full)
        sys.stderr.write(f"\r\x1b[K{self._name} [{bar}] {done:,} of {total:,} jobs")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _write(session: Session, page: Path | None, replays: list[Replay]) -> None:
    from dray.sim.traces.pages import draw_page, draw_table

    if page is not None:
        words = ["dray", *sys.argv[1:]]
        page.write_text(draw_page("Replayed policies", " ".join(words), replays))
    if session.json:
        session.print_json({"replays": [{"policy": one.name, **one.figures} for one in replays]})
    else:
        print(draw_table(replays))
        if page is not None:
            print(f"plots: {page}", file=sys.stderr)
