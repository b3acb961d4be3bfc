"""The flags of `submit` and `run`, and the environment and folder a job starts with.

Slurm's letters keep their meaning. Only PATH, HOME, LANG and VIRTUAL_ENV of the caller's environment go along, plus
what `--env` names: a job must not depend on, or give away, whatever else happens to be set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from dray.cli.asks.fields import FIELD_OF
from dray.core.model.specs.asks import Asks
from dray.errors import InvalidInput, Problem

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
FLAG_OF = {
    "mem": "--mem",
    "memory": "--mem",
    "labels": "--label",
    "gpu_milli": "--gpus",
    "env": "--env",
    "params": "--param",
}

_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("-J", "--name", metavar="TEXT", help="Name of the job."),
    click.option("-G", "--gpus", metavar="[TYPE:]N", help="GPUs of the whole job; must divide by --nodes."),
    click.option("--gpus-per-node", metavar="[TYPE:]N", help="GPUs of each task."),
    click.option("--gpu-type", metavar="TYPE", help="Model of the GPUs, such as A100."),
    click.option("--vram", metavar="SIZE", help="Memory each GPU must have; 80G is 80·10⁹ bytes."),
    click.option("--backend", metavar="NAME", help="nvidia, metal, vulkan or cpu.  [default: any]"),
    click.option("--device", metavar="KIND[:VARIANT]", help="Kind of device: cpu, gpu or tpu."),
    click.option("-c", "--cpus", metavar="N", help="Cores of each task; fractions allowed.  [default: 1]"),
    click.option("--mem", metavar="SIZE", help="Memory of each task, such as 512m or 16g."),
    click.option(
        "-N", "--nodes", type=int, metavar="N", help="Tasks that start together, each on its own worker."
    ),
    click.option(
        "-t",
        "--time",
        metavar="TIME",
        help="Time limit: minutes, [D-]HH:MM:SS, or 90s, 15m, 2h; 7 days at most.  [default: 24h, of a service none]",
    ),
    click.option(
        "-a", "--array", metavar="RANGE", help="One task per index: 0-9, 0-99:2, 1,3,5-9, 0-99%8 (8 at once)."
    ),
    click.option(
        "--tier",
        metavar="TIER",
        help="data_processing, evaluation, training or fine_tuning: gives the default priority (0, 10, 20, 20) and "
        "the grace before a kill; by itself it preempts only where the policy says by_tier.",
    ),
    click.option(
        "--priority",
        type=int,
        metavar="N",
        help="Higher wins, in queues of order `priority`; one that is given may have lower ones stopped.  "
        "[default: that of the tier]",
    ),
    click.option("--workload", metavar="ID", help="Campaign that it belongs to: see `dray workload`."),
    click.option("--queue", metavar="NAME", help="Queue to wait in.  [default: default]"),
    click.option(
        "--queue-timeout", metavar="TIME", help="Give up if not started after this time.  [default: never]"
    ),
    click.option("--hold", is_flag=True, default=None, help="Do not start it before `dray release`."),
    click.option(
        "--after",
        metavar="NEEDS",
        help="Start only after other jobs: ok:ID (succeeded; also just ID), any:ID (ended), fail:ID (not "
        "succeeded); several with commas.",
    ),
    click.option(
        "--uses",
        multiple=True,
        metavar="SERVICE",
        help="Start only while this service is ready; the task finds it at DRAY_SERVICE_NAME_URL.",
    ),
    click.option(
        "--deadline", metavar="WHEN", help="When it should be done: +2h from now, or 2030-01-31T18:00:00Z."
    ),
    click.option(
        "--retries",
        metavar="N|RULES",
        help="Tries after failures; or what follows which: oom=bigger,node=elsewhere,code=N.  [default: 0]",
    ),
    click.option("--losses", type=int, metavar="N", help="Tries after lost workers.  [default: 3]"),
    click.option("--at-most-once", is_flag=True, default=None, help="Never start a task a second time."),
    click.option("--key", metavar="TEXT", help="Idempotency key: the same key submits once."),
    click.option("--id", "id", metavar="ID", help="Id of the job.  [default: drawn by the hub]"),
    click.option("--label", "labels", multiple=True, metavar="K=V", help="Label of the job."),
    click.option("--require", multiple=True, metavar="COND", help="Worker labels needed: k=v, k!=v, k, !k."),
    click.option("--prefer", multiple=True, metavar="COND", help="Worker labels preferred."),
    click.option(
        "--objective",
        metavar="WHAT",
        help="What matters among workers: cheapest_in_time, or weights such as cost=3,reliability=1.",
    ),
    click.option(
        "--port",
        multiple=True,
        metavar="NAME[=N]",
        help="Port of the worker's range, as DRAY_PORT_NAME, the first as DRAY_PORT too; or that very one.",
    ),
    click.option("--env", multiple=True, metavar="K[=V]", help="Set a variable, or pass one on."),
    click.option("--workdir", metavar="DIR", help="Folder on the worker.  [default: this one]"),
    click.option(
        "--snapshot",
        metavar="DIR",
        help="Send this folder along; the command starts in a copy of it, or in --workdir below that.",
    ),
    click.option(
        "--environment",
        metavar="FILE",
        help="Packages it needs: a requirements file, a pyproject.toml or a uv.lock; built once on each worker.",
    ),
    click.option(
        "--snapshot-limit", metavar="SIZE", help="How large a folder --snapshot may send.  [default: 4g]"
    ),
    click.option("--prolog", metavar="CMD", help="Command to run before; its failure fails the task."),
    click.option("--epilog", metavar="CMD", help="Command to run after; never changes the result."),
    click.option(
        "--notify",
        metavar="EVENTS",
        help="Tell of it: started, done, failed, killed, ended (any of the three) or preempted; several with commas.",
    ),
    click.option(
        "--notify-to",
        multiple=True,
        metavar="WHO",
        help="Whom to tell: a receiver of the policy, an https or a mail address.  [default: as the policy says]",
    ),
    click.option("--type", type=click.Choice(["batch", "service"]), help="Kind of job.  [default: batch]"),
    click.option(
        "--replicas",
        type=int,
        metavar="N",
        help="Of a service: so many processes of it, or groups of --nodes.  [default: 1]",
    ),
    click.option(
        "--restart",
        type=click.Choice(["always", "never"]),
        help="Of a service: whether a replica that ends starts again.  [default: always]",
    ),
    click.option(
        "--share",
        multiple=True,
        metavar="USER",
        help="Of a service: who else may reach it; `everybody` for all.  [default: nobody]",
    ),
    click.option("--user", metavar="NAME", help="Submit for another user (needs admin)."),
]


_TEMPLATE_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--template",
        metavar="NAME[@VERSION]",
        help="Make the job by a template; `dray template ls` lists them.",
    ),
    click.option(
        "-p", "--param", "params", multiple=True, metavar="NAME=VALUE", help="Value for the template."
    ),
]


def template_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of a job that is made by a template."""
    for option in reversed(_TEMPLATE_OPTIONS):
        command = option(command)
    return command


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that describe a job; they arrive as keyword arguments named after the keys of a job file."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_flags(flags: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Keep what was given, in the terms of a job file; `key` is no part of the job and stays out."""
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    for name, value in flags.items():
        if value in (None, ()) or name in ("key", "snapshot_limit"):
            continue
        if name == "env":
            given["env"] = dict(_read_variable(text, problems) for text in value)
        elif name == "params":
            given["params"] = dict(_read_param(text, problems) for text in value)
        elif name == "labels":
            given["labels"] = dict(_read_label(text, problems) for text in value)
        else:
            given[name] = list(value) if isinstance(value, tuple) else value
    return given, problems


def settle_surroundings(spec: dict[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Fill in the folder and the kept variables; what the job says itself wins."""
    workdir = spec.get("workdir")
    if spec.get("snapshot_id"):
        # In a tree of its own: what it is called here says nothing there.
        if workdir is None:
            spec["workdir"] = ""
    elif workdir is None or (isinstance(workdir, str) and not os.path.isabs(workdir)):
        spec["workdir"] = os.path.normpath(Path(_current_folder()) / (workdir or ""))
    env = spec.get("env") or {}
    if isinstance(env, dict):
        kept = {name: environ[name] for name in KEPT_VARIABLES if environ.get(name)}
        spec["env"] = {**kept, **env}


def name_flags(problems: list[Problem], asks: Asks | None = None) -> list[Problem]:
    """Point problems of spec fields at the flags that they came from."""
    sources = asks.sources if asks is not None else {}
    spelled = {field: key for key, field in FIELD_OF.items()}
    renamed = []
    for problem in problems:
        field, _, rest = problem.where.partition(".")
        key = sources.get(field) or spelled.get(field, field)
        flag = "the command" if key == "command" else FLAG_OF.get(key, f"--{key.replace('_', '-')}")
        renamed.append(Problem(f"{flag}{f' ({rest})' if rest else ''}", problem.what))
    return renamed


def _read_variable(text: str, problems: list[Problem]) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not name:
        problems.append(Problem("env", f"{text!r} has no name: write K=V, or K to pass the variable on"))
    elif not mark:
        if name not in os.environ:
            problems.append(Problem("env", f"{name} is not set here: write {name}=VALUE"))
        return name, os.environ.get(name, "")
    return name, value


def _read_param(text: str, problems: list[Problem]) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        what = f"{text!r} is no value for a template: write NAME=VALUE; a queue is chosen by `--queue NAME`"
        problems.append(Problem("params", what))
    return name, value


def _read_label(text: str, problems: list[Problem]) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark or not key:
        problems.append(Problem("labels", f"{text!r} is not a label: write K=V"))
    return key, value


def _current_folder() -> str:
    try:
        # The shell's own name of the folder: behind a link it is the one other machines are likely to share.
        shell = os.environ.get("PWD", "")
        return shell if os.path.isabs(shell) and os.path.samefile(shell, ".") else os.getcwd()
    except FileNotFoundError:
        raise InvalidInput(
            "the current folder no longer exists: change to another, or give --workdir"
        ) from None
