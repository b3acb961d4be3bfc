"""JupyterLab by a template, used as a browser does: a link that is good once, cookies, a kernel, a cell, its output.

Everything goes through the hub, which needs no way to the worker: the worker has dialled out to it. `jupyter-lab`
must be on the PATH (`pip install jupyterlab`).
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import connect

import dray

CELL = "print('computed on the worker:', sum(range(101)))\n6 * 7"
WAIT_S = 90.0


class Browser:
    """As much of a browser as this needs: it goes where links lead, and keeps the cookies that it is given."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self.host, self._port = parts.netloc, parts.port or 80
        self.cookies: dict[str, str] = {}
        self.get(f"{parts.path}?{parts.query}")

    @property
    def headers(self) -> dict[str, str]:
        """What goes along with every request. A page of the service is the only one that is open here."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Host": self.host, "Origin": f"http://{self.host}", "Cookie": cookies}

    def connect(self) -> socket.socket:
        """Browsers find every host under `localhost` on this machine; not every resolver does."""
        return socket.create_connection(("127.0.0.1", self._port), WAIT_S)

    def get(self, path: str) -> bytes:
        answer, body = self._ask("GET", path, None)
        while answer.status in (302, 303):
            parts = urlsplit(answer.headers["Location"])
            answer, body = self._ask("GET", f"{parts.path}?{parts.query}", None)
        return body

    def post(self, path: str, document: Any) -> Any:
        return json.loads(self._ask("POST", path, json.dumps(document))[1])

    def _ask(self, method: str, path: str, body: str | None) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=WAIT_S)
        try:
            # Jupyter wants to see that a page which may read its cookies asks.
            own = {"X-XSRFToken": self.cookies.get("_xsrf", ""), "Content-Type": "application/json"}
            connection.request(method, path, body, {**self.headers, **own})
            answer = connection.getresponse()
            for given in answer.headers.get_all("Set-Cookie", []):
                name, _, value = given.partition(";")[0].partition("=")
                self.cookies[name.strip()] = value
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
        return answer, data


def main() -> None:
    name = f"notebook-{os.getpid()}"
    with dray.connect() as hub:
        params = {"cpus": 0.5, "memory": "500m"}
        job = hub.submit(template="jupyter", params=params, name=name)
        try:
            token = wait_for_token(job)
            browser = Browser(make_link(hub, name))
            print(f"opened http://{browser.host.partition(':')[0]}, with cookies:", *sorted(browser.cookies))
            page = browser.get(f"/lab?token={token}")
            print("a page of JupyterLab came" if b"JupyterLab" in page else f"what is this? {page[:200]!r}")
            kernel = browser.post("/api/kernels", {"name": "python3"})["id"]
            for line in run_cell(browser, kernel, CELL):
                print("cell:", line)
        finally:
            job.cancel()
        print("ended:", job.wait(timeout=WAIT_S).state.value)


def wait_for_token(job: dray.Job) -> str:
    """What JupyterLab prints when it listens. Only the owner of a job sees its output."""
    deadline, said = time.monotonic() + WAIT_S, b""
    while time.monotonic() < deadline:
        said = b"".join(job.logs())
        if found := re.search(rb"/lab\?token=([0-9a-f]+)", said):
            return found[1].decode()
        time.sleep(0.1)
    raise TimeoutError(f"JupyterLab does not say where it is: {said.decode()}")


def make_link(hub: dray.Hub, name: str) -> str:
    """What `dray service open` prints."""
    words = [sys.executable, "-m", "dray.cli.main", "service", "open", name, "--home", str(hub.config.home)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def run_cell(browser: Browser, kernel: str, code: str) -> list[str]:
    """Run code in a kernel over its WebSocket: what it printed, and its value."""
    number, lines = uuid.uuid4().hex, list[str]()
    content = {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
    }
    header = {
        "msg_id": number,
        "msg_type": "execute_request",
        "session": number,
        "username": "",
        "version": "5.3",
    }
    asked = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    url = f"ws://{browser.host}/api/kernels/{kernel}/channels"
    sent = {key: value for key, value in browser.headers.items() if key == "Cookie"}
    origin: Any = browser.headers["Origin"]
    with connect(url, sock=browser.connect(), origin=origin, additional_headers=sent, proxy=None) as peer:
        peer.send(json.dumps(asked))
        while True:
            told = json.loads(peer.recv(WAIT_S))
            if told["parent_header"].get("msg_id") != number:
                continue
            if told["msg_type"] == "stream":
                lines += told["content"]["text"].splitlines()
            elif told["msg_type"] == "execute_result":
                lines.append(told["content"]["data"]["text/plain"])
            elif told["msg_type"] == "error":
                lines += told["content"]["traceback"]
            elif told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
                return lines


if __name__ == "__main__":
    main()
