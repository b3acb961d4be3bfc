"""`dray-session`: a task's line to its agent, for shells. One command, one connection.

Nothing but the standard library, so that a loop may call it. Outside of a task it says nothing and succeeds, except
that nobody asks to stop there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from dray.client.futures.task_session import Session

PATIENCE_S = 10.0
STOP, GO_ON, UNSENT = 0, 1, 1


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    asked = _parser().parse_args(words)
    session = Session()
    if asked.command == "should-stop":
        return _should_stop(session)
    if asked.command == "wait-stop":
        return _wait_stop(session, asked.timeout)
    if asked.command == "progress":
        session.progress(asked.step, asked.fraction, asked.note)
    elif asked.command == "saved":
        session.saved(asked.step)
    else:
        session.finished()
    return _deliver(session, PATIENCE_S if asked.command != "progress" else 1.0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dray-session", description="Speak to dray from inside a task. Outside of one, nothing happens."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    progress = commands.add_parser("progress", help="say how far the work has come")
    progress.add_argument("--step", type=_step)
    progress.add_argument("--fraction", type=float, help="0 to 1")
    progress.add_argument("--note", default="", help="a few words")
    saved = commands.add_parser("saved", help="say that all work up to a step is safe")
    saved.add_argument("step", type=_step)
    commands.add_parser("finished", help="say that the work is whole, whatever is asked for meanwhile")
    commands.add_parser("should-stop", help="exit with 0 if the task is to end, with 1 if it may go on")
    wait = commands.add_parser("wait-stop", help="wait until the task is to end and print why")
    wait.add_argument("--timeout", type=float, metavar="SECONDS", help="exit with 1 after so long")
    return parser


def _step(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"a step is 0 or more, not {text}")
    return number


def _deliver(session: Session, patience_s: float) -> int:
    """Wait until the agent has it; one that is being restarted is waited for."""
    ends_at = time.monotonic() + patience_s
    while not session.close(max(0.0, ends_at - time.monotonic())):
        if time.monotonic() >= ends_at:
            print("dray-session: the agent of this task cannot be reached", file=sys.stderr)
            return UNSENT
        time.sleep(0.05)
    return 0


def _should_stop(session: Session) -> int:
    session.should_stop()
    session.close()
    return STOP if session.stop_reason else GO_ON


def _wait_stop(session: Session, timeout_s: float | None) -> int:
    if not session.wait_stop(timeout_s):
        return GO_ON
    print(f"{session.stop_reason} {session.grace_left_s:.0f}")
    return STOP


if __name__ == "__main__":
    sys.exit(main())
