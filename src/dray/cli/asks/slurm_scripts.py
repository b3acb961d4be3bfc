"""Batch scripts of Slurm: their `#SBATCH` lines as the keys of a job, and what of them means nothing here.

Only the form and the names of Slurm are known here; sizes, times and ranges are read by `cli.asks.fields`, whatever
they came from. The surprising rule: the text of the script travels in the job, as Slurm's own copy does, so that
editing the file after the submit changes nothing and the worker needs no such file.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dray.cli.asks.fields import JobFileError, refuse_file
from dray.cli.asks.flags import KEPT_VARIABLES
from dray.cli.asks.slurm_options import LONG_OF, OPTIONS
from dray.core.model.units import MAX_RUNTIME_S, format_seconds, parse_gpus
from dray.errors import InvalidInput, Problem

# One argument of a program may have 128 KiB on Linux.
MAX_SCRIPT_BYTES = 120_000
SHELLS = frozenset(("sh", "bash", "dash", "ksh", "zsh"))
_MARK = "#SBATCH"
_SRUN = re.compile(r"^\s*srun\s")
_CPUS_KEYS = ("cpus-per-task", "ntasks", "ntasks-per-node")


_NEEDS = {"afterok": "ok", "afterany": "any", "afternotok": "fail"}
# In place of the first line, so that the shell counts lines as the file does. SLURM_JOBID stays within the shell: an
# mpirun that found it would look for Slurm's own list of nodes, and give up.
_PRELUDE = (
    'export SLURM_JOB_ID="$DRAY_JOB_ID${DRAY_ARRAY_INDEX:+_$DRAY_ARRAY_INDEX}" SLURM_NODEID="${RANK:-0}" '
    'SLURM_PROCID="${RANK:-0}" SLURM_LOCALID=0; SLURM_JOBID=$SLURM_JOB_ID; [ -z "${DRAY_ARRAY_INDEX-}" ] || export '
    'SLURM_ARRAY_JOB_ID="$DRAY_JOB_ID" SLURM_ARRAY_TASK_ID="$DRAY_ARRAY_INDEX" '
    'SLURM_ARRAY_TASK_COUNT="$DRAY_ARRAY_COUNT"; srun() { while :; do case "${1-}" in --*=*|-[!-]?*|-[lukKQvX]|'
    "--label|--unbuffered|--exclusive|--overlap|--no-kill|--pty|--quiet|--verbose) shift;; -*) shift 2;; *) break;; "
    'esac; done; "$@"; }'
)


class Given(NamedTuple):
    """An option as the script has it."""

    value: str
    line: int


class Script(NamedTuple):
    """A script read: the keys of a job, where each came from, what to tell the person, processes per node."""

    given: dict[str, Any]
    lines: dict[str, str]
    notes: list[str]
    processes: int


def is_batch_script(word: str) -> bool:
    """Whether a word names a script as sbatch takes it: with `#SBATCH` lines, or a shell's and found by no PATH."""
    try:
        with open(word, "rb") as file:
            head = file.read(MAX_SCRIPT_BYTES)
    except OSError:
        return False
    if not head.startswith(b"#!"):
        return False
    first = head.partition(b"\n")[0].decode(errors="replace")
    return f"\n{_MARK}".encode() in head or ("/" not in word and _shell_of(first) != "")


def read_script(path: Path, arguments: list[str]) -> Script:
    """Read a script, or raise `JobFileError` with every problem."""
    text = _read_text(path)
    first, _, body = text.partition("\n")
    problems: list[Problem] = []
    notes: list[str] = []
    options: dict[str, Given] = {}
    for number, words in _option_lines(text, str(path), problems):
        _take_options(words, number, options, notes, problems, str(path))
    given, lines = _plain_keys(options, notes)
    sizes = _Sizes(options, str(path), problems, notes)
    sizes.read(given, lines)
    _note_srun(body, sizes.processes, notes)
    if problems:
        raise refuse_file(str(path), problems)
    given.setdefault("name", path.name)
    given["command"] = [*first[2:].split(), "-c", f"{_PRELUDE}\n{body}", path.name, *arguments]
    return Script(given, {key: f"{path}:{line}" for key, line in lines.items()}, notes, sizes.processes)


def slurm_variables(spec: Mapping[str, Any], processes: int) -> dict[str, str]:
    """What programs that know Slurm look for, of the job as it is sent: flags may have changed what the script says."""
    nodes = spec.get("node_count") or 1
    return {
        "SLURM_JOB_NAME": str(spec.get("name", "")),
        "SLURM_SUBMIT_DIR": str(spec.get("workdir", "")),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NTASKS": str(nodes * processes),
        "SLURM_NTASKS_PER_NODE": str(processes),
        "SLURM_CPUS_PER_TASK": str(max(1, int(spec.get("cpu_milli") or 0) // 1000 // processes)),
        "SLURM_CPUS_ON_NODE": str(max(1, int(spec.get("cpu_milli") or 0) // 1000)),
    }


def place_problems(path: Path, problems: list[Problem], lines: Mapping[str, str]) -> JobFileError:
    """Problems of keys, told at the lines that they came from."""
    return refuse_file(
        str(path),
        [
            Problem(lines.get(problem.where.split(".")[0], problem.where), problem.what)
            for problem in problems
        ],
    )


def _shell_of(first: str) -> str:
    """The shell that a first line such as `#!/usr/bin/env bash` names; empty for anything else."""
    words = [word for word in first[2:].split() if word != "-S"]
    if words and Path(words[0]).name == "env":
        words = words[1:]
    name = Path(words[0]).name if words else ""
    return name if name in SHELLS else ""


def _read_text(path: Path) -> str:
    name = str(path)
    try:
        data = path.read_bytes()
        text = data.decode()
    except OSError as error:
        raise refuse_file(name, [Problem(name, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise refuse_file(name, [Problem(name, "is not UTF-8 text")]) from None
    faults = []
    if len(data) > MAX_SCRIPT_BYTES:
        faults.append(f"has {len(data)} bytes, the most is {MAX_SCRIPT_BYTES}: call a program from it")
    if "\r\n" in text:
        faults.append("has the line ends of DOS, which no shell reads: convert it with `dos2unix`")
    if not _shell_of(text.partition("\n")[0]):
        what = text.partition("\n")[0][2:].strip()
        faults.append(
            f"is run by {what!r}: {_MARK} lines are read in scripts of {', '.join(sorted(SHELLS))}; "
            f"`dray submit -- {name}` runs it as it is, with flags before the `--`"
        )
    if faults:
        raise refuse_file(name, [Problem(f"{name}:1", fault) for fault in faults])
    return text


def _option_lines(text: str, name: str, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """The `#SBATCH` lines with their numbers; as in Slurm, none after the first command counts."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        if not line.startswith(_MARK) or not line[len(_MARK) :][:1].isspace():
            continue
        try:
            yield number, shlex.split(line[len(_MARK) :], comments=True)
        except ValueError as error:
            problems.append(Problem(f"{name}:{number}", f"cannot be split into words: {error}"))


def _take_options(
    words: list[str],
    number: int,
    options: dict[str, Given],
    notes: list[str],
    problems: list[Problem],
    name: str,
) -> None:
    ahead = iter(words)
    for word in ahead:
        value: str | None = None
        if word.startswith("--"):
            long, mark, text = word[2:].partition("=")
            value = text if mark else None
        else:
            long = LONG_OF.get(word[1:2], "") if word.startswith("-") else ""
            value = word[2:] or None
        option = OPTIONS.get(long)
        if option is None:
            what = word.partition("=")[0]
            notes.append(f"line {number}: {what} is ignored: no option of sbatch that has a meaning here")
            return  # What follows may be its value.
        if value is None and not option.bare:
            value = next(ahead, None)
        if value is None and not option.bare:
            problems.append(Problem(f"{name}:{number}", f"--{long} has no value"))
        elif option.key or long in _READ:
            options[long] = Given(value or "", number)
        elif option.here:
            notes.append(f"line {number}: --{long} is ignored: {option.here}")


def _plain_keys(options: Mapping[str, Given], notes: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Options whose value is the value of a key."""
    given: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for name, (value, line) in options.items():
        option = OPTIONS[name]
        if option.key:
            given[option.key] = True if option.bare else value
            lines[option.key] = line
    if given.get("time", "").lower() in ("0", "infinite", "unlimited"):
        given["time"] = f"{MAX_RUNTIME_S}s"
        notes.append(
            f"line {lines['time']}: no time limit: the longest here, {format_seconds(MAX_RUNTIME_S)}, is taken"
        )
    return given, lines


def _note_srun(body: str, processes: int, notes: list[str]) -> None:
    if processes == 1:
        return
    for number, line in enumerate(body.splitlines(), 2):
        if _SRUN.match(line):
            notes.append(
                f"line {number}: srun starts its command once per node here, not {processes} times: start them with "
                f"mpirun or torchrun"
            )


class _Sizes:
    """The options of which several make one key: how many nodes, and what each of them gets."""

    def __init__(
        self, options: Mapping[str, Given], name: str, problems: list[Problem], notes: list[str]
    ) -> None:
        self._options, self._name, self._problems, self._notes = options, name, problems, notes
        self.processes = 1

    def read(self, given: dict[str, Any], lines: dict[str, int]) -> None:
        for key, (value, line) in self._keys():
            if value is not None:
                given[key], lines[key] = value, line

    def _keys(self) -> Iterator[tuple[str, tuple[Any, int]]]:
        nodes = self._count_nodes()
        if nodes > 1:
            yield "nodes", (nodes, self._line("nodes", "ntasks"))
            self._notes.append(
                f"the script runs on each of the {nodes} nodes (Slurm runs it on the first): RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT say who is who"
            )
        if any(name in self._options for name in _CPUS_KEYS):
            cpus = self._number("cpus-per-task") or 1
            yield "cpus", (cpus * self.processes, self._line(*_CPUS_KEYS))
        cards = self._cards()
        yield from cards.items()
        count = _card_count(cards, nodes)
        yield "mem", self._memory((self._number("cpus-per-task") or 1) * self.processes, count)
        yield "after", self._needs()
        if "no-requeue" in self._options:
            yield "losses", (0, self._line("no-requeue"))
        yield "env", self._env()

    def _count_nodes(self) -> int:
        text = self._options["nodes"].value.partition("-")[0] if "nodes" in self._options else ""
        asked = self._whole("nodes", text) if text else 0
        tasks, each = self._number("ntasks"), self._number("ntasks-per-node")
        nodes = asked or (math.ceil(tasks / each) if tasks and each else 1)
        self.processes = each or (math.ceil(tasks / nodes) if tasks else 1)
        if self.processes > 1:
            self._notes.append(
                f"line {self._line('ntasks', 'ntasks-per-node')}: the script starts once per node, with the cores of "
                f"its {self.processes} processes, and starts them itself (mpirun, torchrun)"
            )
        return nodes

    def _cards(self) -> dict[str, tuple[Any, int]]:
        found: dict[str, tuple[Any, int]] = {}
        for name in ("gpus", "gpus-per-node"):
            if name in self._options:
                found[name.replace("-", "_")] = self._options[name]
        if "gpus-per-task" in self._options:
            kind, _, count = self._options["gpus-per-task"].value.rpartition(":")
            number = self._whole("gpus-per-task", count) * self.processes
            found["gpus_per_node"] = (f"{kind}:{number}" if kind else number, self._line("gpus-per-task"))
        for part in self._options["gres"].value.split(",") if "gres" in self._options else ():
            kind, _, rest = part.partition(":")
            if kind == "gpu":
                ask = rest if rest.rpartition(":")[2].isdigit() else f"{rest}:1" if rest else "1"
                found["gpus_per_node"] = (ask, self._line("gres"))
            elif part and part != "none":
                self._notes.append(
                    f"line {self._line('gres')}: --gres={part} is ignored: `resources` of a job file names more"
                )
        return found

    def _memory(self, cores: int, cards: int) -> tuple[str | None, int]:
        times = {"mem": 1, "mem-per-cpu": cores, "mem-per-gpu": cards}
        for name, factor in times.items():
            if name not in self._options:
                continue
            value, line = self._options[name]
            match = re.fullmatch(r"([0-9]+)([kKmMgGtT]?)[bB]?", value)
            if match is None or not factor:
                what = f"{value!r} is not a size" if match is None else "needs a number of GPUs"
                self._problems.append(Problem(f"{self._name}:{line}", f"--{name}: {what}"))
            elif int(match[1]) == 0:
                self._notes.append(
                    f"line {line}: --{name}=0 is ignored: say how much (`--mem`); without it there is no bound"
                )
            else:
                # Slurm's bare numbers are megabytes.
                return f"{int(match[1]) * factor}{match[2] or 'm'}", line
        return None, 0

    def _needs(self) -> tuple[list[str] | None, int]:
        if "dependency" not in self._options:
            return None, 0
        value, line = self._options["dependency"]
        needs: list[str] = []
        for part in value.split(","):
            kind, *jobs = part.split(":")
            if kind not in _NEEDS or not jobs or "?" in value:
                self._problems.append(
                    Problem(
                        f"{self._name}:{line}",
                        f"--dependency={value} cannot be kept: there is {', '.join(_NEEDS)}, all of them to be met",
                    )
                )
                break
            needs += [f"{_NEEDS[kind]}:{job}" for job in jobs]
        return needs, line

    def _env(self) -> tuple[dict[str, str] | None, int]:
        if "export" not in self._options:
            return None, 0
        value, line = self._options["export"]
        found: dict[str, str] = {}
        for part in value.split(","):
            name, mark, text = part.partition("=")
            if name == "ALL":
                self._notes.append(
                    f"line {line}: --export=ALL is ignored: {', '.join(KEPT_VARIABLES)} go along; for the rest "
                    f"{OPTIONS['export'].here}"
                )
            elif name not in ("NONE", "NIL", "") and (mark or name in os.environ):
                found[name] = text if mark else os.environ[name]
        return found or None, line

    def _number(self, name: str) -> int:
        return self._whole(name, self._options[name].value) if name in self._options else 0

    def _whole(self, name: str, text: str) -> int:
        if text.isascii() and text.isdigit() and int(text[:9]) > 0 and len(text) < 10:
            return int(text)
        problem = Problem(f"{self._name}:{self._line(name)}", f"--{name}: {text!r} is not a number from 1 on")
        if problem not in self._problems:
            self._problems.append(problem)
        return 1

    def _line(self, *names: str) -> int:
        return next((self._options[name].line for name in names if name in self._options), 0)


def _card_count(cards: Mapping[str, tuple[Any, int]], nodes: int) -> int:
    total = 0
    for name, (value, _) in cards.items():
        try:
            total = parse_gpus(str(value)).number // (nodes if name == "gpus" else 1)
        except InvalidInput:
            return 1  # Whoever reads the key tells what is wrong with it.
    return total


# What `_Sizes` reads, or what holds anyway.
_READ = frozenset(
    (
        *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "mem-per-cpu", "mem-per-gpu"),
        *("gres", "gpus", "gpus-per-node", "gpus-per-task", "dependency", "no-requeue", "requeue", "export"),
    )
)
