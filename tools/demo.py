"""`./dev demo`: a hub and two workers on this machine run real jobs before your eyes, and lose processes on the way;
then machines with cards that nobody has join, for a second act.

Everything is real: the `dray` command, its output, the processes and the kill -9. It lives in a temporary home, checks
what it claims, ends by itself and leaves nothing behind. The surprising rule: a step that turns out differently from
its announcement makes the demo exit with 1, so that it cannot lie.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from tools.demo_stage import SLOTS, Stage, Surprise, Voice

LIMIT_S = 118
ARRAY_CAP = 3
ARRAY_TASKS = 20
OFFER = "gpus=4,type=A100,vram=80G,cpus=64,memory=512G"


# --- the acts ---------------------------------------------------------------------------------------------------------


def raise_curtain(stage: Stage) -> None:
    stage.voice.announce("A hub and two workers start on this machine, in a temporary home.")
    stage.start_hub()
    token = stage.call(["token", "create", "--scope", "join", "-o", "json"])
    stage.worker_env = stage.env | {
        "DRAY_HUB": f"http://127.0.0.1:{stage.port}",
        "DRAY_TOKEN": json.loads(token.text)["token"],
    }
    stage.start_workers("ada", "bob")
    stage.dray("worker", "ls", contains=("ada", "bob", "ready"))


def run_a_success(stage: Stage) -> None:
    stage.voice.announce("A job runs; its output comes back.")
    said = stage.dray("run", "--id", "hello", "--", "sh", "-c", 'echo "hello from worker $DRAY_WORKER"')
    stage.check("hello from worker " in said.text, "the output is there, and the exit code is 0")


def run_a_failure(stage: Stage) -> None:
    stage.voice.announce("A job fails; `dray run` exits as the job did.")
    stage.dray("run", "--id", "broken", "--", "sh", "-c", "echo no such data >&2; exit 3", expect=3)
    job = stage.ask_job("broken")
    ended = (job["state"], job["exit_class"], job["exit_code"])
    stage.check(ended == ("failed", "code", 3), "recorded as failed, class `code`, exit code 3")


def ask_too_much(stage: Stage) -> None:
    stage.voice.announce("A job asks for more than any worker has; `dray why` says so with the numbers.")
    stage.dray(
        "submit", "--id", "too-large", "-c", "9000", "--queue-timeout", "1s", "--", "python", "train.py"
    )
    stage.dray("why", "too-large", contains=("cannot ever", "9000 cores"))
    stage.dray("wait", "too-large", expect=125, contains=("unschedulable",))
    stage.check(
        stage.ask_job("too-large")["state"] == "unschedulable",
        "nobody waits for ever: its queue timeout ended it, reasons included",
    )


def run_an_array(stage: Stage) -> None:
    stage.voice.announce(f"An array of {ARRAY_TASKS} tasks, at most {ARRAY_CAP} at once.")
    task = "sleep 0.2; echo index $DRAY_ARRAY_INDEX"
    array = f"0-{ARRAY_TASKS - 1}%{ARRAY_CAP}"
    stage.show_live("run", "--id", "sweep", "-c", "0.5", "-a", array, "--", "sh", "-c", task)
    stage.dray("logs", "sweep/7", contains=("index 7",))
    counts = stage.ask_job("sweep")["tasks"]
    most = _count_at_once(stage.ask("/jobs/sweep/events")["events"])
    stage.check(counts["succeeded"] == ARRAY_TASKS, f"all {ARRAY_TASKS} succeeded")
    stage.check(0 < most <= ARRAY_CAP, f"never more than {ARRAY_CAP} at once (the history shows {most})")


def _count_at_once(events: Sequence[dict[str, Any]]) -> int:
    running: set[str] = set()
    most = 0
    # What ends and what takes its place are decided in one turn and carry one time: the end came first.
    for event in sorted(events, key=lambda event: (event["at"], event["type"] != "attempt_ended")):
        if event["type"] == "task_assigned":
            running.add(event["task_id"])
        elif event["type"] == "attempt_ended":
            running.discard(event["task_id"])
        most = max(most, len(running))
    return most


def cancel_a_job(stage: Stage) -> None:
    stage.voice.announce("A long job is cancelled.")
    stage.dray("submit", "--id", "long", "--", "sleep", "600")
    stage.wait_for(lambda: stage.ask_job("long")["state"] == "running", "the long job runs")
    stage.dray("cancel", "long", contains=("killed",))
    gone = stage.wait_for(
        lambda: [try_ for try_ in stage.ask_job("long")["attempts"] if try_["ended_at"]],
        "the process is gone",
    )
    stage.check(gone[0]["phase"] == "killed", "killed, and the worker confirms that the process is gone")


def ask_why_and_plan(stage: Stage) -> None:
    stage.voice.announce(
        "The cluster fills up with work of low priority. `dray why` and `dray plan` ask the real scheduler."
    )
    policy = stage.folder / "policy.yaml"
    policy.write_text("queues:\n  default: {order: priority}\npreemption: {min_run_s: 0}\n")
    stage.dray("config", "apply", policy.name, contains=("priority",))
    last = 2 * SLOTS - 1
    task = "until test -e calm; do sleep 0.1; done"
    low = ("-c", "0.5", "--priority", "1")
    stage.dray("submit", "--id", "nightly", *low, "-a", f"0-{last}", "--", "sh", "-c", task)
    stage.wait_for(
        lambda: stage.ask_job("nightly")["tasks"]["running"] == last + 1,
        "every slot of both workers is taken",
    )
    stage.dray("submit", "--id", "patient", *low, "--", "echo", "my turn")
    stage.dray("why", "patient", contains=("no free batch slot", "nightly", "Fix: "))
    stage.dray(
        "plan", "-c", "0.5", "--priority", "9", "--", "python", "train.py",
        contains=("Would be stopped for it (priority)", "nightly/"),
    )  # fmt: skip
    waiting = [job["id"] for job in stage.ask("/jobs?state=pending")["jobs"]]
    stage.check(waiting == ["patient"], "a plan is only a plan: nothing was submitted, nobody was stopped")


def make_room(stage: Stage) -> None:
    stage.voice.announce(
        "An urgent job stops one task of lower priority. A receipt says who, why and what it cost."
    )
    stage.dray(
        "run", "--id", "urgent", "-c", "0.5", "--priority", "9", "--", "echo", "served before the others",
        contains=("served before the others",),
    )  # fmt: skip
    (stage.folder / "calm").touch()
    stage.dray("wait", "nightly", "patient", contains=("nightly: succeeded", "patient: succeeded"))
    stage.dray("preemptions", contains=("urgent", "nightly/", "served"))
    (receipt,) = stage.ask("/preemptions")["preemptions"]
    stage.dray("preemptions", receipt["id"], contains=("work of lower priority makes room", "ran again from"))
    (victim,) = receipt["victims"]
    told = (receipt["status"], receipt["task_id"], victim["state"])
    stage.check(
        told == ("served", "urgent", "succeeded"), f"{victim['task_id']} made room, came back and succeeded"
    )


def lose_the_hub(stage: Stage) -> None:
    stage.voice.announce("The hub is killed while two tasks run. They go on, and nothing is lost.")
    wait = "until test -e {}; do sleep 0.1; done; "
    stage.dray(
        "submit", "--id", "short", "--", "sh", "-c", wait.format("go") + "echo ended alone; touch done"
    )
    stage.dray(
        "submit", "--id", "steady", "--", "sh", "-c", "echo before; " + wait.format("back") + "echo after"
    )
    jobs = ("short", "steady")
    stage.wait_for(lambda: all(stage.ask_job(job)["state"] == "running" for job in jobs), "both tasks run")
    uids = {job: stage.ask_job(job)["attempts"][0]["uid"] for job in jobs}
    stage.kill("hub")
    (stage.folder / "go").touch()
    stage.wait_for((stage.folder / "done").exists, "the short task ends while there is no hub")
    stage.voice.note("`short` has just ended, and no hub was there to hear of it")
    stage.start_hub()
    (stage.folder / "back").touch()
    stage.dray("wait", *jobs, contains=("short: succeeded", "steady: succeeded"))
    stage.dray("logs", "short", contains=("ended alone",))
    stage.dray("logs", "steady", contains=("before\nafter",))
    attempts = {job: [try_["uid"] for try_ in stage.ask_job(job)["attempts"]] for job in jobs}
    stage.check(
        attempts == {job: [uid] for job, uid in uids.items()}, "both recorded, each by its first attempt"
    )


def lose_an_agent(stage: Stage) -> None:
    stage.voice.announce(
        "An agent is killed while its task runs. The task goes on, the next agent adopts it."
    )
    mark, go = stage.folder / "pid", stage.folder / "adopted"
    script = "echo $$ > pid; until test -e adopted; do sleep 0.1; done; echo survived"
    stage.dray("submit", "--id", "orphan", "--", "sh", "-c", script)
    stage.wait_for(lambda: mark.exists() and mark.read_text().strip(), "the task has started")
    pid = int(mark.read_text())
    stage.wait_for(lambda: stage.ask_job("orphan")["state"] == "running", "the hub knows that it runs")
    before = stage.ask_job("orphan")
    worker, uid = before["worker"], before["attempts"][0]["uid"]
    stage.kill(worker)
    os.kill(pid, 0)  # raises if the task had gone with its agent
    stage.voice.confirm(f"the task (process {pid}) is still there")
    stage.start_workers(worker)
    go.touch()
    stage.dray("wait", "orphan", contains=("orphan: succeeded",))
    stage.dray("logs", "orphan", contains=("survived",))
    uids = [try_["uid"] for try_ in stage.ask_job("orphan")["attempts"]]
    stage.check(uids == [uid], f"one attempt, the one that {worker} had before it lost its agent")


def pretend_machines(stage: Stage) -> None:
    stage.voice.announce(
        "Second act: two machines that nobody has, each with four cards. Offers are made up, processes are real."
    )
    stage.start_fakes(OFFER, "fake-a100-1", "fake-a100-2")
    stage.dray("worker", "ls", contains=("fake-a100-1", "4× A100"))
    stage.voice.announce("A gang takes all eight cards: its members start together, and know each other.")
    member = 'echo "rank $RANK of $WORLD_SIZE on $DRAY_WORKER, cards $DRAY_DEVICES"'
    stage.dray("submit", "--id", "pretrain", "-N", "2", "-G", "A100:8", "--", "sh", "-c", member)
    stage.dray("wait", "pretrain")
    stage.dray("logs", "pretrain/0", contains=("rank 0 of 2 on fake-a100-", "cards 0,1,2,3"))
    tasks = stage.ask("/jobs/pretrain/tasks")["tasks"]
    machines = sorted(task["worker"] for task in tasks)
    stage.check(machines == ["fake-a100-1", "fake-a100-2"], "one member on each machine, four cards each")


def fill_a_quota(stage: Stage) -> None:
    stage.voice.announce("A quota: the queue of sweeps may hold six cards, so a fourth pair waits.")
    policy = stage.folder / "gpus.yaml"
    policy.write_text(
        "queues:\n  default: {order: priority}\n  sweeps: {order: priority}\n"
        "quotas:\n  - {queue: sweeps, gpus: 6}\npreemption: {min_run_s: 0}\n"
    )
    stage.dray("config", "apply", policy.name)
    task = "until test -e quiet; do sleep 0.1; done"
    for number in range(4):
        words = ("--queue", "sweeps", "-G", "2", "--priority", "1", "--", "sh", "-c", task)
        stage.dray("submit", "--id", f"sweep-{number}", *words)
    stage.wait_for(
        lambda: all(stage.ask_job(f"sweep-{number}")["state"] == "running" for number in range(3)),
        "three pairs of cards are taken",
    )
    stage.dray("why", "sweep-3", contains=("queue sweeps holds 6 of 6 GPUs",))
    stage.dray("quota", contains=("sweeps", "full"))


def make_room_for_cards(stage: Stage) -> None:
    stage.voice.announce("An urgent job wants four cards of one machine: whoever holds them makes room.")
    words = ("-G", "A100:4", "--priority", "9", "--", "sh", "-c", 'echo "cards $DRAY_DEVICES"')
    stage.dray("run", "--id", "hotfix", *words, contains=("cards 0,1,2,3",))
    (receipt,) = stage.ask("/preemptions?job=hotfix")["preemptions"]
    stage.dray("preemptions", receipt["id"], contains=("made up", "work of lower priority"))
    stage.check(
        receipt["fake"] and receipt["kind"] == "gpu",
        "the receipt says what was scarce, and that it was made up",
    )
    (stage.folder / "quiet").touch()
    stage.dray("wait", "sweep-0", "sweep-1", "sweep-2", "sweep-3", contains=("sweep-3: succeeded",))


def take_stock(stage: Stage) -> None:
    stage.voice.announce("All of it is on record, and the hub's own checks agree.")
    stage.dray("ps", contains=("orphan", "sweep", "unschedulable"))
    stage.dray("doctor")


ACTS = (
    raise_curtain,
    run_a_success,
    run_a_failure,
    ask_too_much,
    run_an_array,
    cancel_a_job,
    ask_why_and_plan,
    make_room,
    lose_the_hub,
    lose_an_agent,
    pretend_machines,
    fill_a_quota,
    make_room_for_cards,
    take_stock,
)


def _give_up(number: int, frame: object) -> None:
    raise Surprise(f"the demo was still busy after {LIMIT_S} s")


def _leave(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    began = time.monotonic()
    # A folder with a short name: unix sockets live in it, and their paths end at about 100 bytes.
    stage = Stage(Path(tempfile.mkdtemp(prefix="dray-demo-", dir="/tmp")), Voice())
    signal.signal(signal.SIGALRM, _give_up)
    signal.signal(signal.SIGTERM, _leave)
    signal.alarm(LIMIT_S)
    try:
        for act in ACTS:
            act(stage)
    except (Surprise, subprocess.TimeoutExpired, OSError, KeyError, IndexError, ValueError) as surprise:
        stage.voice.fail(str(surprise) or repr(surprise))
        for name in ("hub", "ada", "bob", "fakes"):
            if (stage.folder / f"{name}.log").exists():
                stage.voice.output(f"--- the end of {name}'s log\n{stage.read_log(name)}")
        return 1
    except KeyboardInterrupt:
        stage.voice.note("interrupted; cleaning up")
        return 128 + signal.SIGINT
    finally:
        signal.alarm(0)
        stage.clean_up()
    stage.voice.close(
        f"Everything came out as announced, in {time.monotonic() - began:.0f} s, and nothing is left behind.\n"
        "Your own: `dray up`, then `dray run -- python train.py`. More in README.md."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
