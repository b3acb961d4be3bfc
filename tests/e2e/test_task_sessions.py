"""Real tasks with a session, in Python and in sh: progress, saves and stops, with agents and hubs killed in between."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tests.e2e.cluster import Cluster, is_alive, wait_for

SHELL = f'session() {{ "{sys.executable}" -m dray.cli.dray_session "$@"; }}\n'
# Works until it is asked to stop, then saves. SIGTERM would end it without a word.
TRAIN = """
import dray, os, time
session, step = dray.session(), 0
print(os.getpid(), flush=True)
while not session.should_stop():
    step += 1
    session.progress(step=step, fraction=0.25, note="epoch 3")
    time.sleep(0.02)
print("stop", session.stop_reason, 0 < session.grace_left_s <= GRACE, flush=True)
session.saved(1000)
time.sleep(300)
"""
# Saves whenever it is told to by a file, step by step.
SAVE = """
import dray, os, sys, time
session, step = dray.session(), 0
print(os.getpid(), flush=True)
while True:
    session.should_stop()
    if os.path.exists(f"{sys.argv[1]}{step + 1}"):
        step += 1
        session.saved(step)
        session.progress(step=step)
    time.sleep(0.02)
"""


def train(cluster: Cluster, grace_s: float = 30, **fields: Any) -> str:
    return cluster.submit(sys.executable, "-c", TRAIN.replace("GRACE", str(grace_s)), **fields)


def wait_progress(cluster: Cluster, job_id: str) -> dict[str, Any]:
    return wait_for(lambda: cluster.job(job_id)["progress"], f"{job_id} says how far it is") or {}


def wait_saved(cluster: Cluster, job_id: str, step: int) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        attempt: dict[str, Any] = cluster.job(job_id)["attempts"][-1]
        return attempt if attempt["saved_step"] == step else None

    return wait_for(there, f"{job_id} saved step {step}") or {}


def wait_phase(cluster: Cluster, job_id: str, phase: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        attempt: dict[str, Any] = cluster.job(job_id)["attempts"][-1]
        return attempt if attempt["phase"] == phase else None

    return wait_for(there, f"{job_id} is {phase}") or {}


def test_progress_is_seen_while_it_runs(site: Cluster) -> None:
    job_id = train(site)
    progress = wait_progress(site, job_id)
    assert (progress["fraction"], progress["note"]) == (0.25, "epoch 3")
    first = progress["step"]
    wait_for(lambda: site.job(job_id)["progress"]["step"] > first, "it moves on")
    assert "25%, step " in site.dray("ps").out
    assert ", epoch 3" in site.dray("show", job_id).out
    (task,) = site.call("GET", f"/jobs/{job_id}/tasks").json["tasks"]
    assert task["progress"]["note"] == "epoch 3"
    site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 30})
    wait_phase(site, job_id, "killed")
    assert site.job(job_id)["progress"] is None


def test_a_task_that_listens_saves_before_it_is_stopped(site: Cluster) -> None:
    job_id = train(site)
    wait_progress(site, job_id)
    site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 30})
    attempt = wait_phase(site, job_id, "killed")
    assert (attempt["saved_step"], attempt["signal"]) == (1000, 15), "once it has saved, TERM ends it"
    assert attempt["saved_run_s"] > 0
    assert site.logs(job_id).decode().splitlines()[1] == "stop user True"
    assert "saved step 1000" in site.dray("show", job_id).out


def test_the_time_limit_is_announced_too(site: Cluster) -> None:
    job_id = train(site, max_runtime_s=1)
    job = site.wait_state(job_id, "failed")
    assert job["exit_class"] == "time_limit"
    assert job["attempts"][0]["saved_step"] == 1000
    assert site.logs(job_id).decode().splitlines()[1] == "stop time_limit True"


def test_a_task_that_does_not_listen_is_stopped_as_ever(site: Cluster) -> None:
    job_id = site.submit(
        sys.executable, "-c", "import dray, time; dray.session().progress(1); time.sleep(300)"
    )
    assert wait_progress(site, job_id)["step"] == 1
    site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 600})
    assert wait_phase(site, job_id, "killed")["signal"] == 15


def test_a_shell_script_does_it_all(site: Cluster) -> None:
    script = SHELL + (
        "session should-stop && exit 90\n"
        'session progress --step 3 --fraction 0.5 --note "epoch 3"\n'
        "session saved 3; echo told\n"
        "until session should-stop; do sleep 0.05; done\n"
        "session saved 4; sleep 300"
    )
    job_id = site.submit("sh", "-c", script)
    site.wait_logs(job_id, 1)
    progress = wait_progress(site, job_id)
    assert (progress["step"], progress["fraction"], progress["note"]) == (3, 0.5, "epoch 3")
    wait_saved(site, job_id, 3)
    site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 60})
    attempt = wait_phase(site, job_id, "killed")
    assert (attempt["saved_step"], attempt["signal"]) == (4, 15)


def test_a_shell_script_may_wait_for_the_stop(site: Cluster) -> None:
    job_id = site.submit("sh", "-c", SHELL + "echo begin; session wait-stop; session saved 1; sleep 300")
    site.wait_logs(job_id, 1)
    agent = site.agents["w1"]
    # It has connected once the socket has a peer: only then is it known to listen.
    wait_for(lambda: b"session.sock" in _sockets(agent.home), "it listens")
    site.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 40})
    attempt = wait_phase(site, job_id, "killed")
    assert attempt["saved_step"] == 1
    assert site.wait_logs(job_id, 2)[1].startswith("user ")


def _sockets(home: Any) -> bytes:
    """Connected unix sockets of this home, as the kernel lists them."""
    with open("/proc/net/unix", "rb") as table:
        mark = str(home).encode()
        return b"".join(line for line in table if mark in line and line.split()[5] == b"03")


def test_a_save_while_the_agent_is_dead_is_told_by_the_next(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    agent = cluster.start_agent("w1")
    job_id = cluster.submit(sys.executable, "-c", SAVE, str(cluster.folder / "save"))
    pid = int(cluster.wait_logs(job_id, 1)[0])
    (cluster.folder / "save1").touch()
    wait_saved(cluster, job_id, 1)
    agent.kill()
    for step in (2, 3):
        (cluster.folder / f"save{step}").touch()
    assert is_alive(pid)
    cluster.start_agent("w1")
    assert wait_saved(cluster, job_id, 3)["no"] == 1, "the same attempt all along"
    wait_for(lambda: (cluster.job(job_id)["progress"] or {}).get("step") == 3, "progress is told again")
    assert is_alive(pid)
    cluster.check()


def test_a_stop_reaches_a_task_through_the_next_agent(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    agent = cluster.start_agent("w1")
    job_id = train(cluster, 60)
    wait_progress(cluster, job_id)
    agent.kill()
    cluster.call("POST", f"/jobs/{job_id}/cancel", {"grace_s": 60})
    cluster.start_agent("w1", wait=False)
    assert wait_phase(cluster, job_id, "killed")["saved_step"] == 1000
    cluster.check()


def test_a_save_outlives_the_hub_and_progress_comes_back(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    cluster.start_hub()
    cluster.start_agent("w1")
    job_id = cluster.submit(sys.executable, "-c", SAVE, str(cluster.folder / "save"))
    cluster.wait_logs(job_id, 1)
    (cluster.folder / "save1").touch()
    before = wait_saved(cluster, job_id, 1)
    cluster.kill_hub()
    (cluster.folder / "save2").touch()
    cluster.start_hub()
    assert cluster.job(job_id)["attempts"][0]["saved_step"] >= 1
    after = wait_saved(cluster, job_id, 2)
    assert after["uid"] == before["uid"]
    assert after["saved_run_s"] > before["saved_run_s"]
    wait_for(lambda: (cluster.job(job_id)["progress"] or {}).get("step") == 2, "progress is told again")
    cluster.check()


def test_no_task_can_read_anothers_session(site: Cluster) -> None:
    script = (
        "import json, os, socket; line = socket.socket(socket.AF_UNIX); line.connect(os.environ['DRAY_SESSION']);"
        "hello = {'attempt': '1-1', 'key': os.environ['DRAY_SESSION_KEY']};"
        "line.sendall(json.dumps({'hello': hello}).encode() + b'\\n'); print(line.recv(4096).decode(), end='')"
    )
    site.wait_state(site.submit("true"))  # so that the script below is not 1-1 itself
    job_id = site.submit(sys.executable, "-c", script)
    site.wait_state(job_id, "succeeded")
    assert "not that attempt's" in site.wait_logs(job_id, 1)[0]
    journal = (site.agents["w1"].home / "worker" / "journal").read_bytes()
    assert b"DRAY_SESSION" not in journal


# Goes on from its checkpoint; with "whole" it says that its work is done even though it was asked to stop.
RESUME = """
import dray, os, sys, time
session = dray.session()
step = int(open("checkpoint").read()) if os.path.exists("checkpoint") else 0
while not session.should_stop() and not step:
    session.progress(note="first")
    time.sleep(0.02)
open("checkpoint", "w").write("7")
print("from", step, session.stop_reason or "done", flush=True)
if "whole" in sys.argv:
    session.finished()
else:
    session.saved(7)
"""


def preempt(make_cluster: Callable[..., Cluster], *words: str) -> tuple[Cluster, str]:
    """A cluster where the job given back made room for another one."""
    cluster = make_cluster()
    cluster.start_hub()
    policy = cluster.folder / "policy.yaml"
    policy.write_text("queues:\n  default: {order: priority}\npreemption: {min_run_s: 0}\n")
    assert cluster.dray("config", "apply", str(policy)).code == 0
    cluster.start_agent("w1", 1)
    low = cluster.submit(sys.executable, "-c", RESUME, *words, max_runtime_s=600, priority=1)
    wait_progress(cluster, low)
    high = cluster.submit("true", priority=50)
    cluster.wait_state(high, "succeeded")
    return cluster, low


def test_a_preempted_task_saves_and_goes_on_from_there(make_cluster: Callable[..., Cluster]) -> None:
    cluster, job_id = preempt(make_cluster)
    job = cluster.wait_state(job_id, "succeeded")
    assert [attempt["phase"] for attempt in job["attempts"]] == ["preempted", "succeeded"]
    assert (job["attempts"][0]["saved_step"], job["preemptions"], job["failures"]) == (7, 1, 0)
    assert cluster.logs(job_id, attempt=1) == b"from 0 preempted\n"
    assert cluster.logs(job_id, attempt=2) == b"from 7 done\n"
    cluster.check()


def test_work_that_is_whole_is_not_done_again(make_cluster: Callable[..., Cluster]) -> None:
    cluster, job_id = preempt(make_cluster, "whole")
    job = cluster.wait_state(job_id, "succeeded")
    assert [attempt["phase"] for attempt in job["attempts"]] == ["succeeded"]
    assert cluster.logs(job_id) == b"from 0 preempted\n"
    cluster.check()
