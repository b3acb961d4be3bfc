"""A lock that an interrupt never keeps, whatever moment it comes at."""

from __future__ import annotations

import subprocess
import sys
import threading

from dray.client.futures.bell import Bell

INTERRUPTS = 3_000
# A timer interrupts while it is waited again and again, mostly for no time at all, so that the interrupt comes anywhere
# in there. Afterwards another thread must get the lock, and nothing but the interrupt may have come out.
PROGRAM = f"""
import queue, signal, sys, threading
from dray.client.futures.bell import Bell

bell, asked, given = Bell(), queue.SimpleQueue(), queue.SimpleQueue()

def take():
    while True:
        asked.get()
        with bell:
            given.put(True)

threading.Thread(target=take, daemon=True).start()
signal.signal(signal.SIGALRM, signal.default_int_handler)
for number in range({INTERRUPTS}):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + number % 97 * 1e-6)
        while True:
            for spell_s in (0, 0, 0, 1e-6):
                bell.wait_for(lambda: None, spell_s)
    except KeyboardInterrupt:
        pass
    asked.put(True)
    try:
        given.get(timeout=20)
    except queue.Empty:
        sys.exit(f"the lock is kept after interrupt {{number}}")
print("free")
"""


def test_an_interrupt_at_any_moment_leaves_the_lock_free() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "free\n"), ran.stderr


def test_what_is_rung_is_heard_and_what_is_not_ends_in_time() -> None:
    bell, found = Bell(), list[int]()

    def look() -> int | None:
        return found[0] if found else None

    assert bell.wait_for(look, 0.01) is None

    def ring() -> None:
        with bell:
            found.append(7)
            bell.notify_all()

    ringer = threading.Timer(0.05, ring)
    ringer.start()
    assert bell.wait_for(look) == 7
    assert bell.wait_for(look, 0) == 7
    ringer.join()
