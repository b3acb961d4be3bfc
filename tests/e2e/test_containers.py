"""A task that names an image runs in a container of it, by whichever tool is here; else it is said that none is."""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster, wait_for

from dray.agent.trees.containers import find_tool

TOOL = find_tool()
BUSYBOX = shutil.which("busybox") or ""
IMAGE = f"localhost/dray-test-{os.getpid()}"


def tool(*words: str) -> str:
    assert TOOL is not None
    done = subprocess.run([TOOL.path, *words], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""


def can_run() -> str:
    """Why nothing can be run here; empty where it can: an image is made by hand, of one program."""
    if TOOL is None or TOOL.kind == "apptainer":
        return "neither podman nor docker is on this machine"
    linked = subprocess.run(["ldd", BUSYBOX or "/none"], capture_output=True, text=True, check=False)
    if not BUSYBOX or linked.returncode == 0:
        return "there is no busybox without libraries to make an image of"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(BUSYBOX, "bin/busybox")
        for name in ("sh", "cat", "echo", "id", "sleep", "pwd", "hostname", "touch", "ps", "wc", "env"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        mark = tarfile.TarInfo("only-in-the-image")
        mark.size = 4
        archive.addfile(mark, io.BytesIO(b"yes\n"))
        for folder in ("tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
    made = subprocess.run(
        [TOOL.path, "import", "-", IMAGE], input=packed.getvalue(), capture_output=True, check=False
    )
    if made.returncode:
        return f"{TOOL.kind} cannot make an image: {made.stderr.decode()[-200:]}"
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
    tried = subprocess.run(
        [TOOL.path, "run", "--rm", "--network", "host", *limits, IMAGE, "/bin/id"],
        capture_output=True,
        check=False,
    )
    return f"{TOOL.kind} runs nothing here: {tried.stderr.decode()[-200:]}" if tried.returncode else ""


@pytest.fixture(scope="module")
def contained(site: Cluster) -> Iterator[Cluster]:
    why = can_run()
    try:
        if why:
            pytest.skip(why)
        yield site
    finally:
        if TOOL is not None:
            tool("rmi", "-f", IMAGE)


def has_said(site: Cluster, job: str, said: bytes) -> bool:
    return site.logs(job) == said


def left(site: Cluster, job: str) -> list[str]:
    """What there is of a job's containers; the tools of a machine know those of everybody."""
    own = {f"dray-{attempt['uid']}" for attempt in site.job(job)["attempts"]}
    return [name for name in tool("ps", "-a", "--format", "{{.Names}}").split() if name in own]


def is_gone(site: Cluster, job: str) -> bool:
    return not left(site, job)


def test_a_task_runs_in_its_image_as_any_task(contained: Cluster, tmp_path: Path) -> None:
    site = contained
    (tmp_path / "code.txt").write_text("brought\n")
    look = "cat code.txt /only-in-the-image; echo $GREETING $DRAY_TASK_INDEX; touch made; pwd; id -u; exit 7"
    (tmp_path / "job.yaml").write_text(
        f"snapshot: .\nenvironment: {{container: {IMAGE}}}\nenv: {{GREETING: hello}}\ncommand: [sh, -c, '{look}']\n"
    )
    made = site.dray("submit", "job.yaml", cwd=tmp_path)
    assert made.code == 0, made.err
    job = site.wait_state(made.out.strip(), "failed")
    printed = site.logs(job["id"]).decode().split()
    assert (job["exit_code"], job["exit_class"]) == (7, "code"), (job, printed)
    assert printed[:4] == ["brought", "yes", "hello", "0"]
    assert printed[4].startswith(str(site.folder / "w1" / "worker" / "snapshots" / "trees"))
    assert printed[5] == str(os.geteuid())
    # In its folder without a snapshot, by a flag, with a limit on memory.
    words = ("--workdir", str(tmp_path), "--mem", "64m", "--environment", f"container:{IMAGE}")
    plain = site.dray("submit", *words, "--", "cat", "code.txt", cwd=tmp_path)
    assert plain.code == 0, plain.err
    assert site.logs(site.wait_state(plain.out.strip(), "succeeded")["id"]) == b"brought\n"
    wait_for(
        lambda: is_gone(site, job["id"]) and is_gone(site, plain.out.strip()), "they go with their tasks"
    )


def test_a_container_is_stopped_whole(contained: Cluster, tmp_path: Path) -> None:
    site = contained
    flag = tmp_path / "up"
    deaf = f"trap '' TERM; sleep 300 & touch {flag}; sleep 300"
    heeding = f"trap 'echo stopping; exit 0' TERM; touch {flag}; while :; do sleep 0.1; done"
    for command, said in ((heeding, b"stopping\n"), (deaf, b"")):
        made = site.dray(
            *("submit", "--environment", f"container:{IMAGE}", "--workdir", str(tmp_path)),
            *("--", "sh", "-c", command),
            cwd=tmp_path,
        )
        job = made.out.strip()
        wait_for(flag.exists, "it runs")
        assert left(site, job)
        grace = "10" if said else "0"
        assert site.dray("cancel", job, "--grace", grace).code == 0
        site.wait_state(job, "killed")
        wait_for(functools.partial(has_said, site, job, said), "what it says on its way out arrives")
        wait_for(functools.partial(is_gone, site, job), "nothing of it is left")
        flag.unlink()


def test_an_image_that_is_not_to_be_had_is_told_of(contained: Cluster, tmp_path: Path) -> None:
    site = contained
    made = site.dray(
        *("submit", "--environment", "container:localhost/no-such-image:1", "--workdir", str(tmp_path)),
        *("--", "true"),
    )
    job = site.wait_state(made.out.strip(), "failed")
    assert (job["exit_class"], job["exit_code"]) == ("snapshot", 125)
    assert "container image localhost/no-such-image:1 cannot be had: " in job["error"]
    refused = site.dray("submit", "--environment", "container:--privileged", "--", "true")
    assert (refused.code != 0, "no name of an image" in refused.err) == (True, True)
