"""Arrays of many short commands: given to the worker ahead of their places, and each run once all the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.e2e.cluster import Cluster, wait_for

TASKS = 160


def _ran(folder: Path) -> list[int]:
    return (
        sorted(int(line) for line in (folder / "ran").read_text().split())
        if (folder / "ran").exists()
        else []
    )


def _attempts_that_waited(site: Cluster, job_id: str) -> int:
    """How many assignments were told to come after another, by the supervisor's own journal."""
    specs = [r for agent in site.agents.values() for r in agent.records("spec")]
    return sum(1 for r in specs if r["task_id"].startswith(f"{job_id}/") and "behind" in (r["meta"] or {}))


def test_each_runs_once_within_its_slots_and_has_its_own_output(site: Cluster, tmp_path: Path) -> None:
    # Each takes a folder while it runs: a fifth at the same time would find none free.
    begin = 'for s in 0 1 2 3; do mkdir s$s 2>/dev/null && got=$s && break; done; [ -n "$got" ] || exit 9; '
    command = f"{begin} echo out $DRAY_ARRAY_INDEX; echo $DRAY_ARRAY_INDEX >> ran; rmdir s$got"
    rounds = iter(range(1000))

    def run_all() -> int:
        """Run them all; gives how many of them were there before their places were free."""
        folder = tmp_path / str(next(rounds))
        folder.mkdir()
        job_id = site.submit("sh", "-c", command, array={"last": TASKS - 1}, workdir=str(folder))
        job = site.wait_state(job_id, "succeeded", "failed")
        assert job["tasks"]["succeeded"] == TASKS
        assert _ran(folder) == list(range(TASKS))
        assert site.logs(job_id, task=TASKS - 1) == f"out {TASKS - 1}\n".encode()
        return _attempts_that_waited(site, job_id)

    # On a machine that has other things to do they take too long for that.
    wait_for(run_all, "some of them are given to the worker ahead")


def test_one_that_takes_long_keeps_nobody_waiting_behind_it(site: Cluster, tmp_path: Path) -> None:
    wait = "[ $DRAY_ARRAY_INDEX = 60 ] && while ! [ -e flag ]; do sleep 0.05; done; "
    command = f"{wait} echo $DRAY_ARRAY_INDEX >> ran"
    job_id = site.submit("sh", "-c", command, array={"last": TASKS - 1}, workdir=str(tmp_path))
    wait_for(lambda: len(_ran(tmp_path)) >= TASKS - 1, "all the others have run", limit_s=60)
    assert site.job(job_id)["state"] == "running"
    (tmp_path / "flag").touch()
    site.wait_state(job_id, "succeeded")
    assert _ran(tmp_path) == list(range(TASKS))


def test_they_outlive_the_death_of_agent_and_hub(site: Cluster, tmp_path: Path) -> None:
    command = "sleep 0.01; echo $DRAY_ARRAY_INDEX >> ran"
    job_id = site.submit("sh", "-c", command, array={"last": TASKS - 1}, workdir=str(tmp_path), retries=0)
    agent = site.agents["w1"]
    wait_for(lambda: len(_ran(tmp_path)) > 20, "some have run")
    agent.kill()
    site.start_agent("w1")
    wait_for(lambda: len(_ran(tmp_path)) > 60, "some more have run")
    site.kill_hub()
    site.start_hub()
    job = site.wait_state(job_id, "succeeded", "failed", limit_s=120)
    assert job["tasks"]["succeeded"] == TASKS, job
    assert [index for index, times in Counter(_ran(tmp_path)).items() if times > 1] == []
