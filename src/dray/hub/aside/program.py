"""The program of a side process: questions come in on stdin, each names its work; answers go out on stdout.

Keeps the hub's loop free: it is another process, and a nicer one. It ends when its stdin does, which is when its hub
does. Heavy libraries are loaded here alone, and by the work that needs them. What goes wrong in one question is its
answer; the next one is another. Work that takes long may say how far it has come.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import msgspec

from dray.errors import DrayError
from dray.hub.aside.frames import COURSE, FAULT, VALUE, frame, read_pieces

# What may be asked, and the function that does it: from the pieces of a scene, while it may go on.
WORK: Mapping[str, str] = MappingProxyType(
    {
        "foresee": "dray.hub.aside.foreseeing:foresee",
        "min_cost": "dray.hub.aside.min_cost:solve",
        "compare": "dray.hub.aside.comparing:compare",
        "imagine": "dray.hub.aside.imagining:imagine",
        "replay": "dray.sim.traces.asked:replay",
        "advise": "dray.sim.traces.asked:advise",
    }
)
Work = Callable[[Sequence[bytes], "Course"], Any]
_encode = msgspec.msgpack.Encoder().encode


class Course:
    """How far one question has come: `()` says whether anybody still waits for it."""

    def __init__(self, go_on: Callable[[], bool], say: Callable[[bytes], None]) -> None:
        self._go_on, self._say = go_on, say

    def __call__(self) -> bool:
        return self._go_on()

    def tell(self, done: int, of: int, what: str = "") -> None:
        """So much of it is done."""
        self._say(COURSE + _encode((done, of, what)))


def main() -> None:
    """Answer until stdin ends."""
    os.nice(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    parent = os.getppid()
    source, sink = sys.stdin.buffer, sys.stdout.buffer

    def say(piece: bytes) -> None:
        try:
            sink.write(frame(piece))
            sink.flush()
        except BrokenPipeError:
            # Its hub was killed meanwhile: nobody waits, and a last flush at exit would only complain of the same.
            os._exit(0)

    course = Course(lambda: os.getppid() == parent, say)
    while (pieces := read_pieces(source)) is not None:
        say(answer(pieces, course))


def answer(pieces: Sequence[bytes], go_on: Course) -> bytes:
    """What one question comes to: the first piece says what is to be done with the others."""
    try:
        return VALUE + _encode(_find(pieces[0].decode())(pieces[1:], go_on))
    except DrayError as error:
        return FAULT + str(error).encode()
    except ImportError as error:
        return FAULT + f"{error.name or error} is not installed".encode()
    except Exception as error:  # noqa: BLE001 - whatever it is, its hub is to hear of it and go on
        return FAULT + f"{type(error).__name__}: {error}".encode()


def _find(name: str) -> Work:
    module, _, function = WORK[name].partition(":")
    found: Work = getattr(import_module(module), function)
    return found


if __name__ == "__main__":
    main()
