"""A service whose replica spans two workers: its members meet, rank 0 answers for both, and when one of them is killed
the whole group starts again. A second worker joins the hub for it, on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import dray

DRAY = (sys.executable, "-P", "-m", "dray.cli.main")

SERVER = """
import json, os, socket, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

rank, place = os.environ["RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(pids).encode())

    def log_message(self, *words):
        pass

if rank == "0":
    peer, _ = socket.create_server(place).accept()
    pids = [os.getpid(), int(peer.recv(16))]
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["DRAY_PORT"])), Handler).serve_forever()
while True:
    try:
        peer = socket.create_connection(place)
        break
    except OSError:
        time.sleep(0.05)
peer.sendall(str(os.getpid()).encode())
time.sleep(1000)
"""


@contextlib.contextmanager
def second_worker(hub: dray.Hub) -> Iterator[None]:
    """Another agent on this machine, with a home of its own, until the end of the block."""
    env = {**os.environ, "DRAY_HOME": str(hub.config.home)}
    made = subprocess.run(
        [*DRAY, "token", "create", "--scope", "join", "-o", "json"], env=env, capture_output=True, check=True
    )
    env["DRAY_WORKER_TOKEN"] = json.loads(made.stdout)["token"]
    url = json.loads((hub.config.home / "hub.json").read_text())["url"]
    with tempfile.TemporaryDirectory() as home:
        start = [*DRAY, "worker", "start", "--hub", url, "--home", home, "--name", "second", "--slots", "2"]
        agent = subprocess.Popen(start, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            # Killed is a verdict; that its process is gone is another, which comes a moment later.
            while any(one["active_jobs"] for one in hub.workers() if one["id"] == "second"):
                time.sleep(0.05)
            agent.terminate()
            agent.wait()
            hub.remove_worker("second")


def ask(hub: dray.Hub, besides: list[int]) -> list[int]:
    """The processes of the group, as its rank 0 tells them; of another start of it than the one before."""
    while True:
        with contextlib.suppress(OSError, dray.DrayError):
            pids: list[int] = json.load(hub.endpoint("wide").open("/"))
            if not {*pids} & {*besides}:
                return pids
        time.sleep(0.1)


def main() -> None:
    with dray.connect() as hub, second_worker(hub):
        service = hub.serve(
            [sys.executable, "-c", SERVER],
            name="wide",
            nodes=2,
            cpus=0.1,
            slot_pool="batch",
            mixed_backends=True,
            ports=["http"],
            health_check={"http": "/", "interval_s": 0.5},
        )
        first = ask(hub, [])
        shown = hub.show_service("wide")
        workers = sorted(one["worker"] for one in shown["replica_list"])
        print(f"{shown['summary']}, on {len({*workers})} workers")
        print(f"callers are sent to {[one['id'] for one in hub.endpoints('wide')]} alone")
        os.kill(first[1], signal.SIGKILL)
        second = ask(hub, first)
        restarts = [one["restarts"] for one in hub.show_service("wide")["replica_list"]]
        print(f"rank 1 was killed: both of {len(second)} started again, one end counts once: {restarts}")
        service.cancel()
        service.wait()


if __name__ == "__main__":
    main()
