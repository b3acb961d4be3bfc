"""A web service gets a new revision while it is asked without a pause, and a bad one goes back by itself: no request
fails meanwhile. Replicas are replaced one by one, each old one only once a new one has been ready for a while.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import dray

# A private hub's worker offers four slots, whatever this machine has: two replicas, and one more while they change.
os.environ.setdefault("DRAY_WORKER_SLOTS", "4")
REQUESTS, CLIENTS = 2000, 4
SERVER = """
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())

    def log_message(self, *words):
        pass

ThreadingHTTPServer(("127.0.0.1", int(os.environ["DRAY_PORT"])), Handler).serve_forever()
"""
ANSWERS: Counter[str] = Counter()
OVER = threading.Event()


def ask(port: int) -> None:
    """Ask the service again and again, each time on a connection of its own; count what is answered."""
    while not OVER.is_set() or ANSWERS.total() < REQUESTS:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            line.request("GET", "/")
            answer = line.getresponse()
            ANSWERS[answer.read().decode() if answer.status == 200 else f"failed: {answer.status}"] += 1
        except OSError as fault:
            ANSWERS[f"failed: {fault!r}"] += 1
        finally:
            line.close()


def wait_until_over(hub: dray.Hub) -> dict[str, object]:
    """Wait for the end of an update, however it ends."""
    while True:
        shown = hub.show_service("web")
        current = next(one for one in shown["revisions"] if one["current"])
        if current["outcome"] and len(shown["replica_list"]) == shown["ready"] == shown["replicas"]:
            return shown
        time.sleep(0.2)


def main() -> None:
    with dray.connect() as hub:
        service = hub.serve(
            [sys.executable, "-c", SERVER, "one"],
            name="web",
            replicas=2,
            cpus=0.1,
            slot_pool="batch",
            ports=["http"],
            health_check={"http": "/", "interval_s": 0.5},
            update={"settle_s": 1, "drain_s": 2, "ready_timeout_s": 20},
        )
        wait_until_over(hub)
        forward = subprocess.Popen(
            [sys.executable, "-m", "dray.cli.main", "forward", "web"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DRAY_HOME": str(hub.config.home)},
        )
        try:
            assert forward.stdout is not None
            port = int(forward.stdout.readline().split()[0].rpartition(":")[2])
            clients = [threading.Thread(target=ask, args=(port,)) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            hub.update_service("web", [sys.executable, "-c", SERVER, "two"])
            print(f"revision {wait_until_over(hub)['revision']} serves")
            hub.update_service("web", ["sh", "-c", "echo no such model; exit 3"])
            shown = wait_until_over(hub)
            print(f"revision {shown['revision']} serves again: {shown['update']}")
            OVER.set()
            for client in clients:
                client.join()
        finally:
            OVER.set()
            forward.terminate()
            forward.wait()
        failed = sum(count for answer, count in ANSWERS.items() if answer.startswith("failed"))
        service.cancel()
        print(f"{failed} of {ANSWERS.total()} requests failed: {dict(ANSWERS)}")


if __name__ == "__main__":
    main()
