"""The stage of `./dev demo`: a temporary home, the processes in it, the command line that talks to them, and the voice.

Knows nothing of what is played. Whatever is started here names the folder, which is how all of it is found and ended.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

COMMAND_S = 30.0
POLL_S = 0.02
SLOTS = 2
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

        self.wait_for_workers(*names)

    def start_fakes(self, offer: str, *names: str) -> None:
        words = ["worker", "start", "--fake", offer, "--count", str(len(names))]
        self.voice.command(words)
        self.start("fakes", words, self.env)
        self.wait_for_workers(*names)

    def wait_for_workers(self, *names: str) -> None:
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
