"""Workers that cannot start work, for real: they eat no queue, say why, and work again once they can."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.cluster import Cluster, wait_dead, wait_for

JOBS = 40
MAP = "import dray; print(list(dray.connect().map(abs, [-1, -2])))"
QUICK = {"DRAY_WORKER_START_WITHIN_S": "3"}


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    made = make_cluster()
    made.start_hub()
    return made


@pytest.fixture
def small_disk(cluster: Cluster) -> Iterator[Path]:
    """A disk of a few megabytes at the home of an agent to come."""
    directory = cluster.folder / "bad"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root and the right to mount")
    yield directory
    cluster.close()
    subprocess.run(["umount", "-l", str(directory)], check=True)


def run_all(cluster: Cluster) -> int:
    """Run many jobs to their ends; gives the number of attempts that they took."""
    ids = [cluster.submit("true", retries=0, losses=0) for _ in range(JOBS)]
    ended = [cluster.wait_state(job_id) for job_id in ids]
    assert {job["state"] for job in ended} == {"succeeded"}, [j for j in ended if j["state"] != "succeeded"]
    return sum(len(job["attempts"]) for job in ended)


def wait_not_ready(cluster: Cluster, name: str, words: str) -> None:
    def says() -> bool:
        detail = cluster.call("GET", f"/workers/{name}").json["state_detail"]
        return bool(detail.startswith("not ready: ")) and words in detail

    wait_for(says, f"{name} says that it is not ready: {words}")


def test_a_full_disk_beside_an_idle_worker_fails_nothing(cluster: Cluster, small_disk: Path) -> None:
    bad = cluster.start_agent("bad", env=QUICK)
    fill(small_disk / "ballast")
    # Its journal has a little room still: the first ones use that up.
    first = [cluster.submit("true", retries=0, losses=0, array={"first": 0, "last": 99})]
    wait_not_ready(cluster, "bad", "no space left")
    waiting = cluster.submit("true")
    why = cluster.call("GET", f"/jobs/{waiting}/why").json
    assert "not ready: no space left" in why["summary"], why
    assert "not ready" in cluster.dray("worker", "ls").out
    assert "bad is not ready: no space left" in cluster.dray("doctor").out
    cluster.start_agent("good")
    assert run_all(cluster) <= JOBS + 8
    assert len(list((bad.home / "worker").glob("runners/*"))) <= 4
    (small_disk / "ballast").unlink()
    wait_for(lambda: cluster.call("GET", "/workers/bad").json["state_detail"] == "", "it is ready again")
    wait_for(lambda: "ready again" in bad.text(), "its log says so too")
    for job_id in (*first, waiting):
        assert cluster.wait_state(job_id)["state"] == "succeeded"


@pytest.fixture
def failing_disk(cluster: Cluster) -> Iterator[Path]:
    """A disk at the home of an agent to come, of a kind that the kernel makes read-only over a fault."""
    image, directory = cluster.folder / "image", cluster.folder / "bad"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(directory)]
    try:
        done = os.geteuid() == 0 and all(
            subprocess.run(command, check=False, capture_output=True).returncode == 0
            for command in (["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], mount)
        )
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("a disk that can fail needs root, mkfs.ext4 and a loop device")
    yield directory
    cluster.close()
    subprocess.run(["umount", "-l", str(directory)], check=True)


def fail_disk(directory: Path) -> None:
    """Let the kernel find a fault in a file system: what is open for writing is read-only from then on, too."""
    number = directory.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    if not trigger.exists():
        pytest.skip("this kernel lets nobody fail a file system on purpose")
    trigger.write_text("1")
    with pytest.raises(OSError, match="Read-only file system"):
        (directory / "probe").touch()


def test_a_home_that_became_read_only_refuses_before_the_start(cluster: Cluster, failing_disk: Path) -> None:
    bad = cluster.start_agent("bad", env=QUICK)
    assert cluster.wait_state(cluster.submit("true"))["state"] == "succeeded"
    fail_disk(failing_disk)
    mark = cluster.folder / "ran"
    held = cluster.submit("sh", "-c", f"echo ran >> {mark}", retries=0, losses=0)
    wait_not_ready(cluster, "bad", "Read-only file system")
    assert not mark.exists()
    cluster.start_agent("good")
    assert cluster.wait_state(held)["state"] == "succeeded"
    assert run_all(cluster) <= JOBS + 8
    assert mark.read_text() == "ran\n", "it was started once"
    # No kernel takes such a fault back: the disk is mounted anew, and with it come a new agent and supervisor.
    supervisor = bad.supervisor_pid
    bad.kill()
    os.kill(supervisor, signal.SIGKILL)
    wait_dead([supervisor])
    subprocess.run(["umount", "-l", str(failing_disk)], check=True)
    image = str(cluster.folder / "image")
    # While anything that the agent had started still stands on the old mount, that one would be mounted again.
    users = ["losetup", "-j", image]
    wait_for(lambda: not subprocess.run(users, capture_output=True, check=True).stdout, "it is let go")
    subprocess.run(["mount", "-o", "loop", image, str(failing_disk)], check=True)
    cluster.start_agent("bad", env=QUICK)
    wait_for(lambda: cluster.call("GET", "/workers/bad").json["state_detail"] == "", "it is ready again")


def test_a_stopped_supervisor_is_noticed_and_what_it_had_runs_elsewhere_once(cluster: Cluster) -> None:
    bad = cluster.start_agent("bad", env=QUICK)
    assert cluster.wait_state(cluster.submit("true"))["state"] == "succeeded"
    os.kill(bad.supervisor_pid, signal.SIGSTOP)
    mark = cluster.folder / "ran"
    held = cluster.submit("sh", "-c", f"echo ran >> {mark}", retries=0, losses=0)
    wait_not_ready(cluster, "bad", "its supervisor does not answer")
    cluster.start_agent("good")
    assert cluster.wait_state(held)["state"] == "succeeded"
    assert run_all(cluster) <= JOBS + 4
    os.kill(bad.supervisor_pid, signal.SIGCONT)
    wait_for(lambda: cluster.call("GET", "/workers/bad").json["state_detail"] == "", "it is ready again")
    assert mark.read_text() == "ran\n", "what was given back was not started late"


def test_a_worker_whose_folders_are_gone_makes_them_anew(cluster: Cluster) -> None:
    agent = cluster.start_agent("w1", env=QUICK)
    for name in ("work", "runners", "attempts"):
        shutil.rmtree(agent.home / "worker" / name, ignore_errors=True)
    (agent.home / "worker" / "runners.sock").unlink(missing_ok=True)
    job_id = cluster.submit("pwd", workdir="", retries=0, losses=0)
    assert cluster.wait_state(job_id)["state"] == "succeeded"
    done = subprocess.run(
        [sys.executable, "-c", MAP], env=cluster.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[1, 2]", done
