"""Slurm's habits: the options of sbatch and its commands, and what each is called here.

Nothing but the table: scripts are read by `cli.asks.slurm_scripts`, and what is typed on a command line gets a hint.
"""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """One option of sbatch: its letter, the key of a job that its value becomes, what to do here in its place.

    One without a key is either read together with others or has no meaning here; `bare` takes no value.
    """

    letter: str = ""
    key: str = ""
    here: str = ""
    bare: bool = False


_OUTPUT = "the hub keeps the output: `dray logs ID > FILE`"
_MAIL = "`--notify ended --notify-to ADDRESS`, where the policy lets jobs send mail"
_MACHINES = "`--require LABEL` chooses machines by their labels, `--gpu-type` by their cards"
OPTIONS: dict[str, Option] = {
    "job-name": Option("J", "name", "`-J`, `--name`"),
    "time": Option("t", "time", "`-t`"),
    "array": Option("a", "array", "`-a`"),
    "partition": Option("p", "queue", "`--queue NAME` (machines are chosen by `--require LABEL`)"),
    "chdir": Option("D", "workdir", "`--workdir DIR`"),
    "hold": Option("H", "hold", "`--hold`", bare=True),
    "requeue": Option(here="the default: a task whose worker is lost runs again (`--losses`)", bare=True),
    "no-requeue": Option(here="`--losses 0`", bare=True),
    "dependency": Option("d", here="`--after ok:ID`, `any:ID` or `fail:ID`"),
    "export": Option(here="`--env NAME` or `--env NAME=VALUE`, for each that the job needs"),
    "nodes": Option("N", here="`-N`"),
    "ntasks": Option("n", here="`-c N` for processes of one machine, `-N` for machines"),
    "ntasks-per-node": Option(here="`-c N` for processes of one machine"),
    "cpus-per-task": Option("c", here="`-c`"),
    "mem": Option(here="`--mem`"),
    "mem-per-cpu": Option(here="`--mem SIZE`, for the whole task"),
    "mem-per-gpu": Option(here="`--mem SIZE`, for the whole task"),
    "gres": Option(here="`--gpus-per-node [TYPE:]N`"),
    "gpus": Option("G", here="`-G`"),
    "gpus-per-node": Option(here="`--gpus-per-node`"),
    "gpus-per-task": Option(here="`--gpus-per-node [TYPE:]N`"),
    "output": Option("o", here=_OUTPUT),
    "error": Option("e", here=_OUTPUT),
    "input": Option("i", here="redirect it inside the script: `program < FILE`"),
    "open-mode": Option(here=_OUTPUT),
    "mail-type": Option(here=_MAIL),
    "mail-user": Option(here=_MAIL),
    "account": Option("A", here="whoever submits pays; `--label K=V` marks a job"),
    "qos": Option("q", here="`--priority N`, `--tier` or `--queue`"),
    "nice": Option(here="`--priority N`, higher wins"),
    "priority": Option(here="`--priority N`, higher wins"),
    "begin": Option("b", here="`--hold`, then `dray release ID` when it may start"),
    "deadline": Option(here="`--deadline WHEN`"),
    "constraint": Option("C", here=_MACHINES),
    "nodelist": Option("w", here=_MACHINES),
    "exclude": Option("x", here="`--require 'LABEL!=VALUE'` avoids machines by their labels"),
    "exclusive": Option(here="ask for all its cores or cards (`-c`, `-G`)", bare=True),
    "licenses": Option("L", here="a pace of the policy bounds what runs at once"),
    "signal": Option(here="a task is told before it is stopped: see save-on-stop"),
    "comment": Option(here="`--label K=V`"),
    "reservation": Option(here="the policy keeps room for big jobs"),
    "wrap": Option(here="`dray submit -- sh -c 'COMMAND'`"),
    "parsable": Option(here="stdout holds the id alone", bare=True),
    "wait": Option("W", here="`dray run`, or `dray wait ID`", bare=True),
    "verbose": Option("v", bare=True),
    "quiet": Option("Q", bare=True),
}
LONG_OF = {option.letter: name for name, option in OPTIONS.items() if option.letter}


def hint_of(flag: str) -> str:
    """What to type in place of an option of sbatch; empty for what is none."""
    name = flag.lstrip("-")
    long = name if flag.startswith("--") else LONG_OF.get(name[:1], "")
    option = OPTIONS.get(long)
    return f"Slurm's --{long}: {option.here}" if option is not None and option.here else ""
