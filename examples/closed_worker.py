"""A forward to a service on a worker that nobody can dial: two machines, of which one lets connections out and none in.

The machines are network namespaces with a cable between them, which takes root and the program `ip` (iproute2). A hub
runs on one, a worker on the other; the service answers on its own machine's loopback, and is reached from the hub's.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = f"{os.getpid():x}"
NEAR, FAR = f"drn{MARK}", f"drf{MARK}"
HUB, WORKER = "10.213.78.1", "10.213.78.2"
DRAY = (sys.executable, "-P", "-m", "dray.cli.main")
SERVER = "echo hello from $DRAY_WORKER > index.html; exec python3 -m http.server $DRAY_PORT --bind 0.0.0.0"
WAIT_S = 60.0


@contextlib.contextmanager
def two_machines() -> Iterator[None]:
    """Both, and the cable. The far one turns away what others open to its ports; answers to its own come in."""
    links = {NEAR: (f"vn{MARK}", HUB), FAR: (f"vf{MARK}", WORKER)}
    try:
        for name in links:
            ip("netns", "add", name)
        ip("link", "add", links[NEAR][0], "netns", NEAR, "type", "veth", "peer", links[FAR][0], "netns", FAR)
        for name, (link, address) in links.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        rule = ("-n", FAR, "rule", "add", "pref")
        ip(*rule, "10", "iif", links[FAR][0], "ipproto", "tcp", "dport", "1-32767", "prohibit")
        ip(*rule, "100", "table", "local")
        ip("-n", FAR, "rule", "del", "pref", "0")
        yield
    finally:
        for name in links:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Machines:
    """Programs on both, in one folder; they end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._env = {**os.environ, "DRAY_HOME": str(folder / "hub"), "HOME": str(folder)}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, machine: str, *words: str) -> Path:
        """Start a dray command that stays; what it says goes to the file that is given back."""
        log = self.folder / f"{len(self._started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                inside(machine, *words), env=self._env, cwd=self.folder, stdout=file, stderr=file
            )
        self._started.append(process)
        return log

    def ask(self, *words: str, machine: str = NEAR) -> str:
        """Run a dray command to its end: what it said, empty where it failed."""
        done = subprocess.run(
            inside(machine, *words),
            env=self._env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout if done.returncode == 0 else ""

    def close(self) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            process.wait()


def inside(machine: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", machine, *DRAY, *words]


def wait(look: Callable[[], str], what: str) -> str:
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so within {WAIT_S:g} s: {what}")
        time.sleep(0.05)
    return found


def show(machines: Machines) -> None:
    machines.start(NEAR, "hub", "--host", HUB)
    token = wait(lambda: machines.ask("token", "create", "--scope", "join"), "the hub answers")
    more = ("--name", "far", "--home", str(machines.folder / "far"), "--service-slots", "1")
    machines.start(FAR, *shlex.split(token)[1:], *more, "--backend", "cpu", "--ports", "20000-29999")
    wait(lambda: machines.ask("worker", "show", "far"), "the worker has joined")
    machines.ask("serve", "-J", "web", "--id", "web", "-c", "0", "--port", "http", "--", "sh", "-c", SERVER)
    wait(lambda: machines.ask("service", "endpoints", "web"), "the service is ready")
    print(machines.ask("service", "endpoints", "web"), end="")
    said = machines.start(NEAR, "forward", "web", "8080:http")
    wait(lambda: "leads to" * ("leads to" in said.read_text()), "the forward stands")
    port = (
        machines.ask("service", "endpoints", "web", "-o", "json").partition('"http": ')[2].partition("}")[0]
    )
    print(f"{WORKER}:{port.strip()} from the hub's machine:", fetch(f"{WORKER}:{port.strip()}"))
    print("by the forward:", wait(lambda: fetch("127.0.0.1:8080", quiet=True), "the service listens"))
    print(machines.ask("service", "stop", "web"), end="")


def fetch(address: str, quiet: bool = False) -> str:
    """Ask for a page from the hub's machine."""
    words = ["ip", "netns", "exec", NEAR, sys.executable, __file__, "fetch", address]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    return said.stdout.strip() if said.returncode == 0 or not quiet else ""


def fetch_here(address: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=2) as page:
            print(page.read().decode().strip())
    except OSError as fault:
        print("no connection:", fault)
        return 1
    return 0


def main() -> None:
    with two_machines(), tempfile.TemporaryDirectory(prefix="dr") as name:
        machines = Machines(Path(name))
        try:
            show(machines)
        finally:
            machines.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["fetch"]:
        sys.exit(fetch_here(sys.argv[2]))
    main()
