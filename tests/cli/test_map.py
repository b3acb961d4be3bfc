"""`dray map`: items from arguments and stdin, output, order, exit codes, JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dray
from dray.client.faces.private_hub import PrivateHub


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateHub]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("DRAY_")]:
            patch.delenv(name)
        started = PrivateHub()
    try:
        yield started
    finally:
        started.stop()


def run_map(cluster: PrivateHub, *words: str, items: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "dray.cli.main", "map", "--home", str(cluster.home), *words],
        env=env,
        input=items,
        stdin=None if items is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_items_from_arguments(cluster: PrivateHub) -> None:
    ran = run_map(cluster, "-k", "--", "echo", "<{}>", ":::", "a", "b c", "d")
    assert (ran.returncode, ran.stdout) == (0, "<a>\n<b c>\n<d>\n"), ran.stderr


def test_items_from_stdin_and_the_folder_of_the_caller(cluster: PrivateHub, tmp_path: Path) -> None:
    ran = run_map(
        cluster,
        "--workdir",
        str(tmp_path),
        "--env",
        "WORD=hi",
        "--",
        "sh",
        "-c",
        'echo $WORD > "$0"',
        items="x\n\ny\n",
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]
    assert (tmp_path / "x").read_text() == "hi\n"


def test_the_first_failure_is_the_exit_code(cluster: PrivateHub) -> None:
    ran = run_map(cluster, "-k", "--", "sh", "-c", "echo {} >&2; exit {}", ":::", "0", "3", "4")
    assert ran.returncode == 3
    assert "2 of 3 did not succeed: 3, 4" in ran.stderr
    assert run_map(cluster, "--", "no-such-command-here", ":::", "1").returncode == 127


def test_a_document_for_programs(cluster: PrivateHub) -> None:
    ran = run_map(cluster, "-o", "json", "-j", "1", "--", "sh", "-c", "exit {}", ":::", "0", "2")
    document = json.loads(ran.stdout)
    assert (document["total"], document["failed"]) == (2, 1)
    assert [(row["item"], row["exit_code"]) for row in document["items"]] == [("0", 0), ("2", 2)]


def test_detached(cluster: PrivateHub, tmp_path: Path) -> None:
    ran = run_map(cluster, "--detach", "--", "touch", f"{tmp_path}/{{}}", ":::", "a", "b")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_makes_no_sense_is_refused(cluster: PrivateHub) -> None:
    assert run_map(cluster, "--", ":::", "a").returncode == 2
    assert run_map(cluster).returncode == 2
    assert "no meaning for map" in run_map(cluster, "-a", "0-3", "--", "true", ":::", "a").stderr


def test_an_interrupt_cancels_the_rest(cluster: PrivateHub, tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
    words = [
        "map",
        "--home",
        str(cluster.home),
        "--",
        "sh",
        "-c",
        f"touch {tmp_path}/begun; sleep {{}}",
        ":::",
        "600",
    ]
    running = subprocess.Popen(
        [sys.executable, "-P", "-m", "dray.cli.main", *words], env=env, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "cancelling what has not ended" in said


def test_a_call_whose_process_dies_is_one_failure_among_others(cluster: PrivateHub) -> None:
    script = "if [ {} = 2 ]; then kill -9 $PPID; fi; echo {}"
    ran = run_map(cluster, "-k", "--", "sh", "-c", script, ":::", "1", "2", "3")
    assert "Traceback" not in ran.stderr
    assert (ran.returncode, ran.stdout) == (1, "1\n3\n"), ran.stderr
    assert "1 of 3 did not succeed: 2" in ran.stderr


def test_a_detached_map_is_a_document_too(cluster: PrivateHub) -> None:
    ran = run_map(cluster, "--detach", "-o", "json", "--", "true", ":::", "1", "2")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["total"]) == (0, 2), ran.stderr
    with dray.connect(home=cluster.home) as hub:
        assert hub.wait(document["job"], timeout=60).ok


def test_a_reader_that_leaves_ends_the_job(cluster: PrivateHub) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("DRAY_")}
    words = [
        "--home",
        str(cluster.home),
        "--name",
        "unread",
        "-j",
        "1",
        "--",
        "sh",
        "-c",
        "echo {}; sleep 0.05",
    ]
    mapping = subprocess.Popen(
        [sys.executable, "-P", "-m", "dray.cli.main", "map", *words, ":::", *map(str, range(2000))],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert mapping.stdout is not None
    assert mapping.stdout.readline().strip().isdigit()
    mapping.stdout.close()
    _, said = mapping.communicate(timeout=60)
    assert (mapping.returncode, said) == (128 + signal.SIGPIPE, b"")
    with dray.connect(home=cluster.home) as hub:
        (job,) = hub.jobs(name="unread")
        assert hub.wait(job.id, timeout=60).state is dray.JobState.KILLED
