"""What a task finds around it: environment, folder, prolog and epilog; and what must not be there."""

from __future__ import annotations

import pytest
from tests.e2e.cluster import Cluster, wait_for

KEPT = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "SHELL",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
}
# Made by the shell or the C library, not handed over.
OWN = {"PWD", "SHLVL", "_", "OLDPWD"}


@pytest.fixture(scope="module")
def environment(site: Cluster) -> dict[str, str]:
    done = site.dray(
        *("run", "-J", "named", "--env", "MINE=1", "--env", "PASSED", "--", "env", "-0"),
        env={"PASSED": "on", "SECRET_KEY": "hunter2", "DRAY_TOKEN": site.token},
    )
    assert done.code == 0, done
    return dict(item.split("=", 1) for item in done.out.split("\0") if item)


def test_only_named_variables_get_through(environment: dict[str, str]) -> None:
    rest = {name for name in environment if name not in KEPT | OWN and not name.startswith("DRAY_")}
    assert rest == {"MINE", "PASSED", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTHONUNBUFFERED"}
    assert (environment["MINE"], environment["PASSED"]) == ("1", "on")


def test_no_token_gets_through(site: Cluster, environment: dict[str, str]) -> None:
    assert not {"DRAY_TOKEN", "DRAY_WORKER_TOKEN", "SECRET_KEY"} & set(environment)
    assert site.token not in str(environment)


def test_no_cards_are_seen_without_an_ask(environment: dict[str, str]) -> None:
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_task_knows_itself(environment: dict[str, str]) -> None:
    told = {
        name: environment[f"DRAY_{name}"]
        for name in ("ATTEMPT", "WORKER", "TASK_INDEX", "JOB_NAME", "DEVICES")
    }
    assert told == {"ATTEMPT": "1", "WORKER": "w1", "TASK_INDEX": "0", "JOB_NAME": "named", "DEVICES": ""}
    assert environment["DRAY_JOB_ID"] == environment["DRAY_TASK_ID"]


def test_the_callers_folder_is_the_tasks_folder(site: Cluster) -> None:
    folder = site.folder / "where"
    folder.mkdir()
    assert site.dray("run", "--", "pwd", cwd=folder).out == f"{folder}\n"


def test_a_missing_folder_is_a_clear_failure(site: Cluster) -> None:
    done = site.dray("run", "--workdir", "/no/such/folder", "--", "true")
    assert done.code == 125, done
    assert "/no/such/folder" in done.err
    job = site.call("GET", "/jobs", limit=1).json["jobs"][0]
    assert (job["state"], job["exit_class"]) == ("failed", "workdir")


def test_prolog_then_command_then_epilog(site: Cluster) -> None:
    trace = site.folder / "trace"
    job_id = site.submit(
        *("sh", "-c", f"echo command >> {trace}; exit 3"),
        prolog=["sh", "-c", f"echo prolog >> {trace}"],
        epilog=["sh", "-c", f"echo epilog >> {trace}; exit 9"],
    )
    job = site.wait_state(job_id, "failed")
    assert job["exit_code"] == 3
    wait_for(lambda: trace.read_text() == "prolog\ncommand\nepilog\n", "all three ran in order")


def test_a_failing_prolog_fails_the_task(site: Cluster) -> None:
    trace = site.folder / "never"
    done = site.dray("run", "--prolog", "sh -c 'exit 2'", "--", "touch", str(trace))
    assert done.code == 125, done
    assert "prolog" in done.err
    assert not trace.exists()


def test_a_task_leads_its_own_group(site: Cluster) -> None:
    done = site.dray("run", "--", "sh", "-c", "ps -o pgid= -p $$ | tr -d ' '; echo $$")
    group, pid = done.out.split()
    assert group == pid


def test_the_agents_own_surroundings_stay_its_own(site: Cluster) -> None:
    """Neither the task nor the supervisor that it could look at hold what the agent was started with."""
    env = {"DRAY_TOKEN": site.token, "CLOUD_SECRET": "hunter2"}
    site.start_agent("w2", 1, "", "--label", "side=b", env=env)
    script = "cat /proc/self/environ /proc/$PPID/environ"
    done = site.dray("run", "--require", "side=b", "--", "sh", "-c", script)
    assert done.code == 0, done
    assert "DRAY_WORKER=w2" in done.out
    assert site.token not in done.out
    assert "hunter2" not in done.out


KILLED = "import os, signal; print('before the end'); os.kill(os.getpid(), signal.SIGKILL)"


def test_python_keeps_nothing_back_of_what_it_prints(site: Cluster) -> None:
    job_id = site.submit("python3", "-c", KILLED)
    site.wait_state(job_id, "failed")
    wait_for(lambda: site.logs(job_id) == b"before the end\n", "what was printed before the kill is there")
    array = site.submit("python3", "-c", KILLED, array={"last": 1})
    site.wait_state(array, "failed")
    wait_for(
        lambda: all(site.logs(array, task=index) == b"before the end\n" for index in (0, 1)),
        "so it is of each task of an array",
    )
    buffered = site.submit("python3", "-c", KILLED, env={"PYTHONUNBUFFERED": ""})
    site.wait_state(buffered, "failed")
    assert site.logs(buffered) == b"", "the job's own word counts"
