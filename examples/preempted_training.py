"""A training loop that makes room for urgent work: it is asked to stop, saves its step, and resumes from there.

The hub's queue must go by priority and allow preemption: this example applies such a policy, so run it against a hub of
your own, or none, in which case a private one is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dray

STEPS = 40
POLICY = """
queues:
  default: {order: priority}
preemption:
  strategy: priority
  min_run_s: 0
"""


def train(folder: Path) -> None:
    """The training itself, inside its task: load, step, save when asked to stop."""
    session, checkpoint = dray.session(), folder / "checkpoint.json"
    step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
    print(f"begins at step {step}", flush=True)
    (folder / "begun").touch()
    while step < STEPS and not session.should_stop():
        time.sleep(0.05)  # the real work
        step += 1
        session.progress(step=step, fraction=step / STEPS)
    draft = folder / "checkpoint.new"
    draft.write_text(json.dumps({"step": step}))
    draft.replace(checkpoint)  # whole or not at all
    print(f"saved step {step}: {session.stop_reason or 'done'}", flush=True)
    session.saved(step)


def answer(question: str) -> str:
    """Urgent, and short."""
    return question.upper()


def main() -> None:
    with dray.connect() as hub, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apply_policy(hub, folder)
        cores = max(int(worker["cpu_count"]) for worker in wait_for_workers(hub))
        command = [sys.executable, os.path.abspath(__file__), "train", str(folder)]
        training = hub.submit(command, cpus=cores, priority=1, name="training")
        while not (folder / "begun").exists():
            time.sleep(0.05)
        urgent = hub.submit(answer, "make room", cpus=cores, priority=9)
        print("urgent:", urgent.result(timeout=120))
        print("training:", training.result(timeout=120).state.value)
        attempts = training.status()["attempts"]
        print(f"in {len(attempts)} attempts:", ", ".join(attempt["phase"] for attempt in attempts))
        print("receipt:", hub.preemptions(training)[0]["rule"])


def wait_for_workers(hub: dray.Hub) -> list[dict[str, Any]]:
    """A private hub's worker takes a moment to appear."""
    while not (workers := hub.workers()):
        time.sleep(0.05)
    return workers


def apply_policy(hub: dray.Hub, folder: Path) -> None:
    """What `dray config apply` does."""
    (folder / "policy.yaml").write_text(POLICY)
    words = ["config", "apply", str(folder / "policy.yaml"), "--home", str(hub.config.home)]
    subprocess.run([sys.executable, "-m", "dray.cli.main", *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]))
    else:
        main()
