"""What people who come from Slurm type and have lying about works, or is told what to do instead."""

from __future__ import annotations

import os
import subprocess

import pytest

from dray.cli.asks.slurm_options import OPTIONS
from dray.cli.main import COMMANDS, ELSEWHERE, main

SCRIPT = """#!/bin/bash -e
#SBATCH --job-name=train   # a remark
#SBATCH -t 1-02:00:00
#SBATCH --cpus-per-task 4
##SBATCH --mem=1T
#SBATCH --mem=4000
#SBATCH --gres=gpu:a100:2,lustre:1
#SBATCH -a 1,3,5-9%2 --no-requeue
#SBATCH --partition=night --output=logs/%j.out
#SBATCH --dependency=afterok:a:b,afternotok:c
#SBATCH --mail-type=END --mail-user=ada@example.org
#SBATCH -D /data
#SBATCH --export=ALL,MODE=fast
#SBATCH --bogus=1

echo "$SLURM_ARRAY_TASK_ID $1"
#SBATCH --time=1
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(text, name="train.sh"):
        (tmp_path / name).write_text(text)
        return name

    return make


def sent(hub):
    return hub.asked("POST", "/jobs")[-1][1]


def sizes(hub):
    names = ("cpu_milli", "memory_bytes", "gpu_count", "gpu_type", "node_count")
    return tuple(sent(hub).get(name) for name in names)


def test_a_batch_script_becomes_a_job_and_what_it_loses_is_named(hub, write, capfd):
    assert main(["submit", write(SCRIPT), "-x", "y"]) == 0
    spec = sent(hub)
    assert {
        name: spec.get(name) for name in ("name", "queue", "workdir", "after", "losses", "max_runtime_s")
    } == {
        "name": "train",
        "queue": "night",
        "workdir": "/data",
        "after": ["ok:a", "ok:b", "fail:c"],
        "losses": 0,
        "max_runtime_s": 26 * 3600,
    }
    assert spec["array"] == {"indices": "1,3,5-9", "limit": 2}
    assert sizes(hub) == (4000, 4000 << 20, 2, "a100", None)
    assert spec["env"]["MODE"] == "fast"
    assert (spec["command"][:3], spec["command"][4:]) == (["/bin/bash", "-e", "-c"], ["train.sh", "-x", "y"])
    said = capfd.readouterr().err
    for line, what in [
        (7, "--gres=lustre:1 is ignored"),
        (9, "--output is ignored: the hub keeps the output: `dray logs ID > FILE`"),
        (11, "--mail-type is ignored: `--notify ended"),
        (11, "--mail-user is ignored"),
        (13, "--export=ALL is ignored"),
        (14, "--bogus is ignored"),
    ]:
        assert f"dray: train.sh: line {line}: {what}" in said
    assert said.count(" is ignored") == 6


@pytest.mark.parametrize(
    ("lines", "expected", "told"),
    [
        (
            ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8"],
            (1000, None, 8, None, 2),
            "on each of the 2 nodes",
        ),
        (["-N", "2", "-n", "2", "-G", "16"], (1000, None, 8, None, 2), "RANK, WORLD_SIZE"),
        (["-n", "4", "-c", "2"], (8000, None, None, None, None), "the cores of its 4 processes"),
        (
            ["-n 8", "--ntasks-per-node=4", "--gpus-per-task=1"],
            (4000, None, 4, None, 2),
            "and starts them itself",
        ),
        (["-c", "4", "--mem-per-cpu=2G"], (4000, 8 << 30, None, None, None), ""),
        (["--gpus=2", "--mem-per-gpu=10G"], (1000, 20 << 30, 2, None, None), ""),
        (["--gres=gpu", "--mem=0"], (1000, None, 1, None, None), "say how much"),
        (["--gres=gpu:h200", "--time=UNLIMITED"], (1000, None, 1, "h200", None), "the longest here, 7 d"),
        (["--exclusive", "-vQ", "-A", "us"], (1000, None, None, None, None), "--exclusive is ignored"),
    ],
)
def test_sizes_of_several_options_are_put_together(hub, write, capfd, lines, expected, told):
    text = "\n".join(["#!/bin/sh", f"#SBATCH {' '.join(lines)}", "true"])
    assert main(["submit", write(text)]) == 0
    assert sizes(hub) == expected
    assert told in capfd.readouterr().err


def test_flags_win_over_the_script_and_programs_are_told_what_holds(hub, write):
    assert main(["submit", "-c", "8", "-t", "5", "--queue", "day", "-a", "0-1", write(SCRIPT)]) == 0
    spec = sent(hub)
    assert (spec["cpu_milli"], spec["max_runtime_s"], spec["queue"]) == (8000, 300, "day")
    assert (spec["env"]["SLURM_CPUS_PER_TASK"], spec["env"]["SLURM_NTASKS"]) == ("8", "1")


def test_the_script_finds_what_slurm_would_have_told_it(hub, write):
    """The command as it is sent, run by the shell that it names: line numbers stay, srun runs its command."""
    body = """echo "$SLURM_JOB_ID $SLURM_JOBID $SLURM_ARRAY_TASK_ID $0 $1"
srun -n 1 --gpus=2 -l --cpu-bind none sh -c 'echo "<$0>"' "a b"
$LINENO"""
    assert main(["submit", write(f"#!/usr/bin/env bash\n#SBATCH -a 3\n{body}\n"), "first"]) == 0
    spec = sent(hub)
    told = {"DRAY_JOB_ID": "j1", "DRAY_ARRAY_INDEX": "3", "DRAY_ARRAY_COUNT": "1"}
    env = {**os.environ, **spec["env"], **told}
    done = subprocess.run(spec["command"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "j1_3 j1_3 3 train.sh first\n<a b>\n"
    assert "line 5: 5:" in done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#!/bin/sh\n#SBATCH --mem=lots\n", "train.sh:2: --mem: 'lots' is not a size"),
        ("#!/bin/sh\n#\n#SBATCH -t later\n", "train.sh:3: 'later' is not a time"),
        ("#!/bin/sh\n#SBATCH -n many\n", "train.sh:2: --ntasks: 'many' is not a number"),
        ("#!/bin/sh\n#SBATCH -d singleton\n", "train.sh:2: --dependency=singleton cannot be kept"),
        ("#!/bin/sh\n#SBATCH -J 'x\n", "train.sh:2: cannot be split"),
        ("#!/bin/sh\n#SBATCH --time\n", "train.sh:2: --time has no value"),
        ("#!/usr/bin/python3\n#SBATCH -c 1\n", "train.sh:1: is run by '/usr/bin/python3'"),
        ("#!/bin/sh\r\n#SBATCH -c 1\r\n", "train.sh:1: has the line ends of DOS"),
    ],
)
def test_a_script_that_cannot_be_kept_is_refused_at_its_line(hub, write, capfd, text, problem):
    assert main(["submit", write(text)]) == 2
    assert problem in capfd.readouterr().err
    assert not hub.requests


def test_a_plain_script_by_its_name_alone_is_taken_as_sbatch_takes_it(hub, write):
    name = write("#!/bin/sh\ntrue\n", "plain.sh")
    assert main(["submit", name]) == 0
    assert sent(hub)["command"][-1] == "plain.sh"
    assert main(["submit", f"./{name}"]) == 0
    assert sent(hub)["command"] == ["./plain.sh"]
    assert main(["submit", "--", write(SCRIPT)]) == 0
    assert sent(hub)["command"] == ["train.sh"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--gres", "gpu:1"], "`--gpus-per-node [TYPE:]N`"),
        (["--gres=gpu:1"], "`--gpus-per-node [TYPE:]N`"),
        (["-p", "gpu"], "`--queue NAME`"),
        (["--partition=gpu"], "`--queue NAME`"),
        (["--cpus-per-task=4"], "`-c`"),
        (["-d", "afterok:1"], "`--after ok:ID`"),
        (["-o", "out.txt"], "`dray logs ID > out.txt`"),
        (["--output=%j.log"], "`dray logs ID > %j.log`"),
    ],
)
def test_options_of_slurm_get_a_hint(hub, capfd, words, hint):
    assert main(["submit", *words, "--", "true"]) == 2
    assert hint in capfd.readouterr().err
    assert not hub.requests


@pytest.mark.parametrize(
    "words", [["submit", "-f", "x.yaml"], ["plan", "--file=x.yaml"], ["run", "-fx.yaml"]]
)
def test_a_job_file_after_a_flag_of_other_tools_gets_a_hint(hub, capfd, words):
    assert main(words) == 2
    assert f"`dray {words[0]} FILE.yaml`" in capfd.readouterr().err


@pytest.mark.parametrize("verb", sorted(ELSEWHERE))
def test_commands_of_slurm_get_a_hint(clean_environment, capfd, verb):
    assert main([verb, "x"]) == 2
    assert f"that is `dray {ELSEWHERE[verb]}` here" in capfd.readouterr().err
    assert ELSEWHERE[verb].split()[0] in COMMANDS


def test_every_option_says_what_to_do_here():
    assert not [
        name for name, option in OPTIONS.items() if not option.here and name not in ("verbose", "quiet")
    ]
