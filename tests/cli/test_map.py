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

from dray.client.private import PrivateHub


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
