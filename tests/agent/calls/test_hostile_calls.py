"""Calls that attack their agent, which is root, from another account: through links, pipes, names and damaged files."""

from __future__ import annotations

import hashlib
import os
import pwd
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.calls.call_hub import wait_for
from tests.agent.calls.foreign_hub import VISITOR, ForeignHub

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tasks as somebody else")

CAP_BYTES = 50_000
SECRET = b"only root may read this\n" * 4000


def by_value(function: Any) -> Any:
    """A function that travels whole: where it runs there is no module of this name."""
    function.__module__ = "__main__"
    return function


@pytest.fixture(scope="module")
def hub() -> Iterator[ForeignHub]:
    made = ForeignHub()
    try:
        (made.private / "stdout.0").write_bytes(SECRET)
        made.start(DRAY_WORKER_OUTPUT_BYTES=str(CAP_BYTES))
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def unharmed(hub: ForeignHub) -> Iterator[None]:
    """After every attack: the agent serves on, root's files are as they were, nothing of them has left."""
    hub.gaps = True
    yield
    assert hub.call(os.geteuid)[:2] == ("succeeded", pwd.getpwnam(VISITOR).pw_uid)
    assert hub.agent is not None
    assert hub.agent.poll() is None
    assert os.listdir(hub.private) == ["stdout.0"]
    assert (hub.private / "stdout.0").read_bytes() == SECRET
    assert not any(b"only root" in data for data in [*hub.output.values(), *hub.blobs.values()])


@by_value
def plant(kind: str, target: str) -> None:
    """As a call: print, and put something into what is shipped as this call's output, at the offset behind that."""
    import os
    import sys

    from dray.runner.outputs import Outputs
    from dray.wire.local.runner_frames import STDOUT

    collect = Outputs.collect

    def collect_more(self: Any, lane: str, index: int) -> int:
        Outputs.collect = collect  # type: ignore[method-assign]  # as it was
        folder = f"{sys.argv[1]}/ended/{lane}.{index}"
        if kind == "folder":
            os.symlink(os.path.dirname(target), folder)
            return STDOUT
        flags = collect(self, lane, index)
        at = os.path.getsize(f"{folder}/stdout.0")
        if kind == "symlink":
            os.symlink(target, f"{folder}/stdout.{at}")
        elif kind == "hardlink":
            os.link(target, f"{folder}/stdout.{at}")
        elif kind == "sparse":
            with open(f"{folder}/stdout.{at}", "wb") as file:
                file.truncate(1 << 40)
        elif kind == "far":
            with open(f"{folder}/stdout.{'9' * 30}", "wb") as file:
                file.write(b"x")
        return flags

    Outputs.collect = collect_more  # type: ignore[method-assign]  # what user code in a runner can do
    os.write(1, b"mine\n")


@pytest.mark.parametrize("kind", ["symlink", "folder", "far"])
def test_what_stands_in_a_log_s_place_is_not_shipped(hub: ForeignHub, kind: str) -> None:
    assert hub.call(plant, kind, str(hub.private / "stdout.0"))[0] == "succeeded"
    if kind != "folder":
        wait_for(lambda: hub.printed() == b"mine\n", "what was printed has arrived, and no more")


def test_a_file_with_another_name_elsewhere_is_not_shipped(hub: ForeignHub) -> None:
    # The kernel lets a user link what it may write to, or owns: here a file of its own that root has put in its care.
    kept = hub.folder / "kept"
    kept.write_bytes(b"only root gives this away\n")
    os.chown(kept, pwd.getpwnam(VISITOR).pw_uid, -1)
    assert hub.call(plant, "hardlink", str(kept))[0] == "succeeded"
    wait_for(lambda: hub.printed() == b"mine\n", "what was printed has arrived, and no more")


def test_a_huge_log_is_cut(hub: ForeignHub) -> None:
    assert hub.call(plant, "sparse", "")[0] == "succeeded"
    wait_for(lambda: len(hub.printed()) == 5 + CAP_BYTES, "as much as may be has arrived")


def test_what_grows_is_cut_and_what_it_is_linked_to_is_not(hub: ForeignHub) -> None:
    def link(target: str) -> None:
        import os
        import sys
        import time

        live = f"{sys.argv[1]}/live"
        os.symlink(target, f"{live}/stderr.7")
        for name in ("stdout.0", "stdout.60000"):
            # Once it is called otherwise the agent has cut it, and looked at all the others as well.
            os.write(1, b"x" * 60_000)
            deadline = time.monotonic() + 60
            while os.path.exists(f"{live}/{name}") and time.monotonic() < deadline:
                time.sleep(0.01)
        os.unlink(f"{live}/stderr.7")

    state, _, detail = hub.call(link, str(hub.private / "stdout.0"))
    assert state == "succeeded", detail


def test_a_dead_call_s_output_goes_to_no_folder_of_root_s(hub: ForeignHub) -> None:
    def die(private: str) -> None:
        import os
        import sys

        (name,) = [os.environ["DRAY_ATTEMPT_UID"]]
        os.symlink(private, f"{sys.argv[1]}/ended/{name}.0")
        os.write(1, b"last words")
        os._exit(3)

    assert hub.call(die, str(hub.private))[2][0] == "crashed"
    wait_for(lambda: hub.printed() == b"last words", "what it had printed has arrived")


@by_value
def save_as(value: bytes, link: str = "", size: int = 0) -> bytes:
    """As a call with a large result: name another file, or none at all, as what holds it."""
    import os
    import sys

    from dray.runner.program import Program

    save = Program._save

    def save_other(self: Any, packed: Any) -> bytes:
        setattr(Program, "_save", save)  # noqa: B010 - as it was
        path = f"{sys.argv[1]}/values/{value.split()[-1].decode()}"
        if link == "pipe":
            os.mkfifo(path)
        elif link:
            os.symlink(link, path)
        elif size:
            with open(path, "wb") as file:
                file.truncate(size)
        return value

    setattr(Program, "_save", save_other)  # noqa: B010 - what user code in a runner can do
    return bytes(100_000)


def test_a_value_that_is_no_file_of_its_own_is_not_sent(hub: ForeignHub) -> None:
    digest = hashlib.sha256(SECRET).hexdigest()
    for number, link in enumerate((str(hub.private / "stdout.0"), "pipe")):
        named = f"{digest} {len(SECRET)} {70 + number}".encode()
        state, _, (exit_class, error) = hub.call(save_as, named, link)
        assert (state, exit_class) == ("failed", "environment")
        assert "did not reach the hub" in error


def test_a_value_of_another_size_is_not_sent(hub: ForeignHub) -> None:
    state, _, (_, error) = hub.call(save_as, f"{'a' * 64} 100000 77".encode(), "", 99_999)
    assert (state, "has 99999 bytes" in error) == ("failed", True)


@pytest.mark.parametrize("digest", ["../../../../private/x", "A" * 64, "a" * 63, "a" * 64 + "\n", "/etc/x"])
def test_a_digest_that_is_none_ends_the_runner_that_says_it(hub: ForeignHub, digest: str) -> None:
    state, _, (exit_class, error) = hub.call(save_as, f"{digest} 100000 77".encode(), "", 100_000)
    assert (state, exit_class) == ("failed", "crashed")
    assert "spoke sense" in error


def test_a_question_for_a_path_is_refused(hub: ForeignHub) -> None:
    def ask(name: str) -> str:
        import gc

        from dray.runner.job import Refusal
        from dray.runner.program import Program

        (program,) = [found for found in gc.get_objects() if isinstance(found, Program)]
        try:
            program._ask({"blob": [name, 1]})
        except Refusal as fault:
            return str(fault)
        return "answered"

    assert "is not the SHA-256 of a value" in hub.call(ask, "../private/stdout.0")[1]
    assert not list(hub.shared.glob("private*"))


@by_value
def spoil(data: bytes, size: int) -> None:
    """As a call: damage the note of what this runner is doing, and die."""
    import os
    import sys

    with open(f"{sys.argv[1]}/now", "r+b", buffering=0) as file:
        file.write(data)
        file.truncate(size)
    os.kill(os.getpid(), 9)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"\xff" * 32, 0),
        (b"\xff" * 32, 7),
        (b"\xff" * 32, 1 << 24),
        (struct.pack("<qIBB2xI", 0, 1, 1, 0, 1) + b"5", 4096),
        (struct.pack("<qIBB2xI", 1 << 62, 1, 1, 0, 9) + b'[{},"job"]', 4096),
    ],
)
def test_a_damaged_note_is_its_runner_s_trouble(hub: ForeignHub, data: bytes, size: int) -> None:
    # Nobody knows by then which call it was: another process tries it, and another, and then it has failed.
    state, _, (exit_class, _) = hub.call(spoil, data, size)
    assert (state, exit_class) == ("failed", "crashed")


def test_a_runner_cannot_put_another_note_or_folder_in_the_place_of_its_own(hub: ForeignHub) -> None:
    def swap() -> list[str]:
        import os
        import sys

        done = []
        for name in ("now", "lane", "live", "ended", "values"):
            try:
                os.rename(f"{sys.argv[1]}/{name}", f"{sys.argv[1]}/live/{name}")
                done.append(name)
            except OSError:
                continue
        return done

    assert hub.call(swap)[:2] == ("succeeded", [])


@pytest.mark.parametrize("field", ["wall", "value", "frame"])
def test_results_beyond_all_bounds_end_the_runner_that_tells_them(hub: ForeignHub, field: str) -> None:
    def tell(field: str) -> None:
        import gc
        import time

        from dray.runner.line import Line
        from dray.wire.local.runner_frames import HEAD, RESULTS, results_frame

        (line,) = [found for found in gc.get_objects() if isinstance(found, Line)]
        if field == "frame":
            line.write(HEAD.pack(1 << 27, RESULTS))
        else:
            wall_us, value = (1 << 60, b"") if field == "wall" else (1, bytes(1 << 20))
            line.write(results_frame([(0, 1, 0, 0, wall_us, value, b"")]))
        time.sleep(60)

    assert hub.call(tell, field)[2][0] == "crashed"


def test_what_a_runner_leaves_is_removed_however_deep_it_is(hub: ForeignHub) -> None:
    def dig() -> str:
        import os
        import sys

        os.chdir(f"{sys.argv[1]}/values")
        for _ in range(1100):
            os.mkdir("d")
            os.chdir("d")
        os.kill(os.getpid(), 9)
        return ""

    assert hub.call(dig)[2][0] == "crashed"
    wait_for(lambda: not list(hub.shared.glob("runners/*/values/d")), "the runner's folder is gone")
