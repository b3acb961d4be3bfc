"""`./dev demo`: a hub and two workers on this machine run real jobs before your eyes, and lose processes on the way.

Everything is real: the `dray` command, its output, the processes and the kill -9. It lives in a temporary home, checks
what it claims, ends by itself and leaves nothing behind. The surprising rule: a step that turns out differently from
its announcement makes the demo exit with 1, so that it cannot lie.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 88
COMMAND_S = 30.0
POLL_S = 0.02
SLOTS = 2
ARRAY_CAP = 3
ARRAY_TASKS = 20
DRAY = (sys.executable, "-P", "-m", "dray.cli.main")


class Surprise(Exception):
    """Something came out differently from what was announced."""


class Said(NamedTuple):
    """What one command did."""

    code: int
    text: str


class Voice:
    """Says what happens: in colour on a terminal, plain elsewhere."""

    def __init__(self) -> None:
        self._styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._number = 0

    def announce(self, text: str) -> None:
        self._number += 1
        self._print(f"\n{self._number}. {text}", "bold cyan")

    def command(self, words: Sequence[str]) -> None:
        self._print(f"   $ dray {shlex.join(words)}", "bold")

    def output(self, text: str) -> None:
        for line in text.rstrip("\n").splitlines():
            self._print(f"   {line}", "")

    def note(self, text: str) -> None:
        self._print(f"   {text}", "yellow")

    def confirm(self, text: str) -> None:
        self._print(f"   ok: {text}", "green")

    def fail(self, text: str) -> None:
        self._print(f"   NOT AS ANNOUNCED: {text}", "bold red")

    def close(self, text: str) -> None:
        self._print(f"\n{text}", "bold green")

    def _print(self, text: str, style: str) -> None:
        if not self._styled:
            print(text, flush=True)
            return
        from rich.console import Console

        Console(highlight=False, soft_wrap=True).print(text, style=style or None, markup=False)


class Stage:
    """The temporary home, the processes in it, and the command line that talks to them."""

    def __init__(self, folder: Path, voice: Voice) -> None:
        self.folder, self.voice = folder, voice
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        # Agents come back to a hub within half a second here; half a minute, the default, suits a real cluster.
        self.env |= {"DRAY_HOME": str(folder / "hub"), "DRAY_WORKER_RECONNECT_MAX_S": "0.5"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.worker_env: dict[str, str] = {}
        self.port = 0

    def start(self, name: str, words: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*DRAY, *words],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def start_hub(self) -> None:
        words = ["hub", "--port", str(self.port)]
        self.voice.command(words)
        process = self.start("hub", words, self.env)
        note = self.folder / "hub" / "hub.json"

        def is_up() -> dict[str, Any] | None:
            with contextlib.suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads(note.read_bytes())
                return found if found["pid"] == process.pid else None
            if process.poll() is not None:
                raise Surprise(f"the hub ended: {self.read_log('hub')}")
            return None

        url = str(self.wait_for(is_up, "the hub listens")["url"])
        self.port = int(url.rpartition(":")[2])
        self.voice.output(f"ready {url}")

    def start_workers(self, *names: str) -> None:
        for name in names:
            words = ["worker", "start", "--name", name, "--slots", str(SLOTS)]
            self.voice.command(words)
            self.start(name, [*words, "--home", str(self.folder / name)], self.worker_env)

        def are_ready() -> bool:
            workers = self.ask("/workers")["workers"]
            return set(names) <= {worker["id"] for worker in workers if worker["status"] in ("ready", "busy")}

        self.wait_for(are_ready, f"{' and '.join(names)} are ready")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        self.voice.note(f"kill -9 {process.pid} (the {'hub' if name == 'hub' else f'agent of {name}'})")
        process.kill()
        process.wait()

    def dray(self, *words: str, expect: int = 0, contains: Sequence[str] = ()) -> Said:
        """Show a command and what it prints, and hold it to its exit code and to the words it must say."""
        self.voice.command(words)
        done = self.call(words)
        self.voice.output(done.text)
        if expect:
            self.voice.output(f"(exit code {done.code})")
        if done.code != expect:
            raise Surprise(f"`dray {shlex.join(words)}` exited with {done.code}, not {expect}")
        for part in contains:
            if part not in done.text:
                raise Surprise(f"`dray {shlex.join(words)}` did not say {part!r}")
        return done

    def show_live(self, *words: str) -> None:
        """As `dray`, with the terminal handed on, so that a progress bar can move."""
        self.voice.command(words)
        done = subprocess.run(
            [*DRAY, *words],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=sys.stdout,
            stderr=sys.stdout,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise Surprise(f"`dray {shlex.join(words)}` exited with {done.returncode}, not 0")

    def ask(self, path: str) -> Any:
        """What the hub says to programs: no command is started for a look that nobody sees."""
        token = (self.folder / "hub" / "token").read_text().strip()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=COMMAND_S)
        try:
            connection.request("GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            document = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise Surprise(f"the hub answered GET {path} with {answer.status}: {document}")
        return document

    def ask_job(self, job_id: str) -> Any:
        return self.ask(f"/jobs/{job_id}")

    def call(self, words: Sequence[str]) -> Said:
        done = subprocess.run(
            [*DRAY, *words],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return Said(done.returncode, done.stdout)

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            raise Surprise(text)
        self.voice.confirm(text)

    def wait_for(self, look: Callable[[], Any], what: str, limit_s: float = 20.0) -> Any:
        deadline = time.monotonic() + limit_s
        while not (found := look()):
            if time.monotonic() > deadline:
                raise Surprise(f"waited {limit_s:g} s in vain until {what}")
            time.sleep(POLL_S)
        return found

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:].strip()

    def clean_up(self) -> None:
        """End what was started here, agents first; supervisors and tasks are found by the folder that is ours alone."""
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            process.kill()
        # Killed ones count as gone before somebody reaps them: the first process of a container may be slow at that.
        deadline = time.monotonic() + 5
        while (left := list(_list_processes(self.folder))) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(Exception):
                    process.kill()
            time.sleep(POLL_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def _list_processes(folder: Path) -> Iterator[Any]:
    """Whatever lives and names the demo's own folder on its command line, and everything below it."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # A process that has ended and is not reaped yet has an empty command line.
            if process.pid != os.getpid() and any(str(folder) in word for word in process.cmdline()):
                yield from process.children(recursive=True)
                yield process


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
        for name in ("hub", "ada", "bob"):
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
