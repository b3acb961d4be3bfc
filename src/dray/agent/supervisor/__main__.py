"""Start the supervisor of one home: `python -m dray.agent.supervisor --home DIR`.

With --detach the process that was started only waits until the supervisor serves, tells by its exit code how that went
and is gone: the supervisor is nobody's child and nobody's group.
"""

from __future__ import annotations

import argparse
import os
import sys

from dray.agent.supervisor.processes.output import SEGMENT_BYTES, STREAM_CAP_BYTES, OutputLimits
from dray.agent.supervisor.records.home import LOCKED_CODE, Home, HomeLocked
from dray.agent.supervisor.records.ledger import KEEP_RECORDS, KEEP_S
from dray.agent.supervisor.server import IDLE_EXIT_S, Retention, Server


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dray-supervisor", description="Runs the tasks of one dray agent.")
    parser.add_argument("--home", required=True, help="folder of this agent's supervisor")
    parser.add_argument("--detach", action="store_true", help="return as soon as it serves")
    parser.add_argument("--keep-s", type=float, default=KEEP_S, help="seconds to keep acknowledged attempts")
    parser.add_argument(
        "--keep-records", type=int, default=KEEP_RECORDS, help="acknowledged attempts to keep"
    )
    parser.add_argument("--cap-bytes", type=int, default=STREAM_CAP_BYTES, help="output kept per stream")
    parser.add_argument("--segment-bytes", type=int, default=SEGMENT_BYTES, help="size of one output file")
    parser.add_argument("--idle-exit-s", type=float, default=IDLE_EXIT_S, help="leave when unused this long")
    return parser.parse_args(words)


def serve(options: argparse.Namespace, ready_fd: int) -> int:
    home = Home(options.home)
    limits = OutputLimits(options.cap_bytes, options.segment_bytes)
    try:
        home.claim()
        server = Server(home, limits, Retention(options.keep_s, options.keep_records), options.idle_exit_s)
        server.open()
    except HomeLocked as error:
        return _tell(ready_fd, LOCKED_CODE, str(error))
    except OSError as error:
        home.log(f"cannot start: {error}")
        return _tell(ready_fd, 1, f"the supervisor of {home.directory} cannot start: {error}")
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for the start must hear of it
        home.log_exception("starting")
        return _tell(ready_fd, 1, f"the supervisor of {home.directory} cannot start: {error!r}")
    _tell(ready_fd, 0, "")
    try:
        server.run()
    except BaseException:
        home.log_exception("running the loop")
        raise
    return 0


def _tell(ready_fd: int, code: int, text: str) -> int:
    if ready_fd >= 0:
        os.write(ready_fd, bytes([code]) + text.encode())
        os.close(ready_fd)
    elif text:
        os.write(2, text.encode() + b"\n")
    return code


def detach(options: argparse.Namespace) -> int:
    read_fd, write_fd = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(read_fd)
        os.close(write_fd)
        return _tell(-1, 1, f"the supervisor of {options.home} cannot start: {error}")
    if child == 0:
        os.close(read_fd)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os._exit(serve(options, write_fd))
    os.close(write_fd)
    answer = b""
    while chunk := os.read(read_fd, 4096):
        answer += chunk
    os.write(2, answer[1:])
    return answer[0] if answer else 1


def main(words: list[str]) -> int:
    options = parse_arguments(words)
    options.home = os.path.abspath(options.home)
    # Whatever the starter left open must reach neither tasks nor this process: some event loops hand the other end of a
    # pipe down, and whoever waits for its end would wait as long as the supervisor lives.
    os.closerange(3, max(int(name) for name in os.listdir("/dev/fd")) + 1)
    # Relative paths end here; a task without a folder of its own starts at the root, not in somebody's home.
    os.chdir("/")
    return detach(options) if options.detach else serve(options, -1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
