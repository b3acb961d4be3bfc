"""What every place for files promises, asked of each of them."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from dray.errors import BrokenInvariant, Conflict, NotFound
from dray.hub.calls.blobs import Upload
from dray.hub.files.base import NOTHING, Files, Found
from dray.hub.files.frames import Frame, split_frames
from dray.hub.workers.outputs import Piece, Recording

Open = Callable[[], Files]
CAP = 1 << 20
OUT, ERR = 0, 1
MIB = 1 << 20


class Hub:
    """What a hub does with its files, in steps: output as pieces arrive, blobs as they are uploaded."""

    def __init__(self, files: Files, cap: int = CAP) -> None:
        self.files, self.cap = files, cap
        self._open: dict[tuple[str, str], Recording] = {}

    def recording(self, name: str = "0.1.1-1", job: str = "j1") -> Recording:
        if (job, name) not in self._open:
            self._open[job, name] = Recording(self.files.tapes.tape(job, name), self.cap)
        recording = self._open[job, name]
        if not recording.scanned:
            recording.found(self.files.tapes.find([recording.tape])[0], recording.news)
        return recording

    def say(self, *pieces: tuple[int, int, bytes], name: str = "0.1.1-1", job: str = "j1") -> tuple[int, int]:
        """File pieces; gives what the worker is told: up to where each stream was received."""
        recording = self.recording(name, job)
        made = recording.lay([Piece(*piece) for piece in pieces])
        if made is not None:
            (is_filed,) = self.files.tapes.write([made[0]])
            assert is_filed is not None, "nobody else writes here"
            recording.settle(*made, is_filed)
        return recording.ends

    def frames(self, name: str = "0.1.1-1", job: str = "j1") -> list[Frame]:
        recording, position, found = self.recording(name, job), 0, []
        while portion := recording.tape.read(position, recording.size):
            found += [frame for frame, _ in split_frames(portion)]
            position += len(portion)
        return found

    def text(self, stream: int = OUT, name: str = "0.1.1-1", job: str = "j1") -> bytes:
        return b"".join(frame.data for frame in self.frames(name, job) if frame.stream == stream)

    def put(self, body: bytes, digest: str = "", piece_bytes: int = 65536) -> str:
        digest = digest or hashlib.sha256(body).hexdigest()
        upload = Upload(self.files.blobs, 1 << 40, lambda size: True)
        try:
            for at in range(0, len(body), piece_bytes):
                upload.write([body[at : at + piece_bytes]])
            upload.seal([], digest)
            self.files.blobs.place(upload.draft, digest)
        except BaseException:
            upload.discard()
            raise
        return digest

    def get(self, digest: str, piece_bytes: int = 65536) -> bytes:
        pieces = []
        with closing(self.files.blobs.open(digest)) as reading:
            while piece := reading.read(piece_bytes):
                pieces.append(piece)
        return b"".join(pieces)


@pytest.fixture
def hub(open_files: Open) -> Hub:
    return Hub(open_files())


# --- output ---------------------------------------------------------------------------------------------------


def test_streams_keep_their_order_of_arrival_and_any_byte(hub: Hub, open_files: Open) -> None:
    raw = bytes(range(256)) * 3
    assert hub.say((OUT, 0, b"one\n")) == (4, 0)
    assert hub.say((ERR, 0, raw), (OUT, 4, b"two\0\n")) == (9, 768)
    wanted = [(OUT, b"one\n"), (ERR, raw), (OUT, b"two\0\n")]
    for one in (hub, Hub(open_files())):
        assert [(frame.stream, frame.data) for frame in one.frames()] == wanted
        assert one.recording().ends == (9, 768)


def test_what_comes_again_is_there_once_and_what_overlaps_is_cut(hub: Hub, open_files: Open) -> None:
    for _ in range(3):
        assert hub.say((OUT, 0, b"abcdef")) == (6, 0)
    assert hub.say((OUT, 3, b"defghi")) == (9, 0)
    again = Hub(open_files())
    # A worker that was not told sends from where it was told last, to whichever hub leads.
    assert again.say((OUT, 0, b"abc"), (OUT, 3, b"defghijkl"), (OUT, 9, b"jkl")) == (12, 0)
    assert again.text() == b"abcdefghijkl"
    assert Hub(open_files()).text() == b"abcdefghijkl"


def test_what_is_missing_is_marked(hub: Hub, open_files: Open) -> None:
    hub.say((OUT, 0, b"ab"))
    assert hub.say((OUT, 10, b"cd")) == (12, 0)
    assert hub.say((ERR, 7, b"e")) == (12, 8)
    found = [(frame.stream, frame.offset, frame.data, frame.gap) for frame in Hub(open_files()).frames()]
    assert found == [
        (OUT, 0, b"ab", 0),
        (OUT, 2, b"", 8),
        (OUT, 10, b"cd", 0),
        (ERR, 0, b"", 7),
        (ERR, 7, b"e", 0),
    ]


def test_past_the_cap_only_the_count_goes_on(open_files: Open) -> None:
    hub = Hub(open_files(), cap=1000)
    assert hub.say((OUT, 0, b"x" * 900)) == (900, 0)
    assert hub.say((OUT, 900, b"y" * 500)) == (1400, 0)
    assert hub.say((OUT, 1400, b"z" * 10)) == (1410, 0)
    assert hub.text() == b"x" * 900 + b"z" * 10
    again = Hub(open_files(), cap=1000)
    assert again.recording().ends == (1410, 0)
    assert again.say((OUT, 1410, b"y" * 900)) == (2310, 0)
    assert [frame.gap for frame in again.frames() if frame.over] == [500, 900]
    assert again.recording().size < 1100


def test_one_batch_holds_pieces_of_many_attempts(hub: Hub, open_files: Open) -> None:
    names = [f"{index}.1.1-{index}" for index in range(1, 200)]
    recordings = [hub.recording(name) for name in names]
    made = [
        recording.lay([Piece(OUT, 0, name.encode()), Piece(ERR, 0, b"\0")])
        for name, recording in zip(names, recordings, strict=True)
    ]
    additions = [one[0] for one in made if one is not None]
    assert hub.files.tapes.write(additions) == [True] * len(names)
    again = Hub(open_files())
    tapes = [again.files.tapes.tape("j1", name) for name in (*names, "0.1.1-999")]
    found = again.files.tapes.find(tapes)
    assert found[-1] == NOTHING
    assert [one.ends for one in found[:-1]] == [(len(name), 1) for name in names]
    assert [again.text(name=name) for name in names] == [name.encode() for name in names]


def test_long_output_is_read_in_portions_from_anywhere(open_files: Open) -> None:
    hub, line = Hub(open_files(), cap=1 << 30), b"0123456789abcde\n"
    offset = 0
    for number in range(60):
        data = line * (3000 + number)
        hub.say((OUT, offset, data))
        offset += len(data)
    hub.say((OUT, offset, b"l" * (3 * MIB)))
    recording = Hub(open_files(), cap=1 << 30).recording()
    assert recording.ends == (offset + 3 * MIB, 0)
    position, portions = 0, []
    while portion := recording.tape.read(position, recording.size):
        assert len(portion) <= 4 * MIB + 64
        portions.append(portion)
        position += len(portion)
    assert position == recording.size
    frames = [frame for portion in portions for frame, _ in split_frames(portion)]
    assert b"".join(frame.data for frame in frames) == line * (offset // 16) + b"l" * (3 * MIB)
    # From the end of any frame the rest follows.
    _, middle = list(split_frames(portions[0]))[4]
    rest = recording.tape.read(middle, recording.size)
    assert next(split_frames(rest))[0].offset == frames[5].offset
    assert recording.tape.read(recording.size, recording.size) == b""


def test_output_goes_with_its_job(hub: Hub, open_files: Open) -> None:
    for job in ("j1", "j2", "j1x"):
        hub.say((OUT, 0, b"text"), job=job)
        hub.say((OUT, 0, b"text"), name="1.1.1-2", job=job)
    hub.files.tapes.drop(["j1", "none"])
    again = Hub(open_files())
    assert [again.text(job=job) for job in ("j1", "j2", "j1x")] == [b"", b"text", b"text"]
    assert again.say((OUT, 0, b"anew"), job="j1") == (4, 0)
    assert again.text(job="j1") == b"anew"


def test_the_oldest_output_of_jobs_that_ended_goes_until_the_rest_fits(hub: Hub) -> None:
    for number in range(6):
        hub.say((OUT, 0, os.urandom(200_000)), job=f"j{number}")
        time.sleep(0.02)
    hub.files.tapes.trim(2 << 20, frozenset({"j0"}))
    tapes = hub.files.tapes

    def kept() -> list[str]:
        names = [f"j{number}" for number in range(6)]
        return [job for job in names if tapes.find([tapes.tape(job, "0.1.1-1")])[0].size]

    assert kept() == [f"j{number}" for number in range(6)]
    tapes.trim(700_000, frozenset({"j0"}))
    assert kept() == ["j0", "j4", "j5"]
    tapes.trim(0, frozenset({"j0"}))
    assert kept() == ["j0"]


@pytest.mark.parametrize("name", ["../j2", "a/b", "..", ".", "", "a\0b", "/etc/passwd", "x" * 300])
def test_no_name_leads_out_of_its_place(hub: Hub, name: str) -> None:
    with pytest.raises(BrokenInvariant, match="cannot be the name"):
        hub.say((OUT, 0, b"x"), job=name)
    with pytest.raises(BrokenInvariant, match="cannot be the name"):
        hub.say((OUT, 0, b"x"), name=name)
    with pytest.raises(BrokenInvariant, match="cannot be the name"):
        hub.files.tapes.drop([name])
    hub.put(b"beside")
    for ask in (hub.files.blobs.size_of, hub.files.blobs.renew, hub.files.blobs.open):
        with pytest.raises(ValueError, match="is not the SHA-256"):
            ask(name)


# --- blobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_001, 50 * MIB])
def test_a_blob_comes_back_as_it_went(hub: Hub, open_files: Open, size: int) -> None:
    body = os.urandom(min(size, 1 << 20)) * (size // (1 << 20) or 1)
    body = body[:size] if size < MIB else body
    digest = hub.put(body)
    again = Hub(open_files())
    for one in (hub, again):
        assert one.files.blobs.size_of(digest) == len(body)
        assert one.get(digest) == body
    assert again.files.blobs.sizes(int(digest[:2], 16)) == {digest: len(body)}
    assert again.files.blobs.sizes(int(digest[:2], 16) ^ 1) == {}
    assert again.put(body) == digest
    assert again.get(digest, 1000 if size < MIB else MIB) == body


def test_what_is_not_what_it_says_is_not_there(hub: Hub, open_files: Open) -> None:
    wrong = hashlib.sha256(b"other").hexdigest()
    for body in (b"x", b"x" * (3 * MIB)):
        with pytest.raises(Conflict, match="send them again whole"):
            hub.put(body, wrong)
    for one in (hub, Hub(open_files())):
        assert one.files.blobs.size_of(wrong) is None
        with pytest.raises((FileNotFoundError, NotFound)):
            one.get(wrong)
    assert Hub(open_files()).files.blobs.renew(wrong) is None


def test_drafts_of_a_hub_that_is_gone_go(hub: Hub, open_files: Open) -> None:
    upload = Upload(hub.files.blobs, 1 << 40, lambda size: True)
    upload.write([b"x" * (3 * MIB)])
    again = Hub(open_files())
    again.files.blobs.remove_drafts(time.time() - 60)
    digest = again.put(b"beside")
    again.files.blobs.remove_drafts(time.time() + 60)
    assert again.get(digest) == b"beside"
    with pytest.raises((FileNotFoundError, NotFound)):
        again.get(hashlib.sha256(b"x" * (3 * MIB)).hexdigest())
    upload.discard()


def test_a_blob_goes_unless_it_is_young(hub: Hub, open_files: Open) -> None:
    digest = hub.put(b"value")
    blobs = Hub(open_files()).files.blobs
    assert blobs.remove(digest, time.time() - 3600) is False
    assert blobs.size_of(digest) == 5
    assert blobs.renew(digest) == 5
    assert blobs.remove(digest, time.time() - 3600) is False
    assert blobs.remove(digest, time.time() + 60) is True
    assert blobs.size_of(digest) is None
    assert blobs.remove(digest, time.time() + 60) is True
    assert Hub(open_files()).put(b"value") == digest


def test_uploads_of_one_digest_at_once_all_end_well(hub: Hub) -> None:
    body, ended = b"same" * 500_000, []
    threads = [threading.Thread(target=lambda: ended.append(hub.put(body))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 6
    assert hub.get(ended[0]) == body


# --- the rest -------------------------------------------------------------------------------------------------


def test_a_secret_is_drawn_once(open_files: Open) -> None:
    assert open_files().keep_secret("task_secret", b"a" * 32) == b"a" * 32
    assert open_files().keep_secret("task_secret", b"b" * 32) == b"a" * 32


def test_it_says_where_it_is(open_files: Open) -> None:
    ok, words = open_files().describe()
    assert ok
    assert words


def test_found_is_what_was_filed(hub: Hub) -> None:
    hub.say((OUT, 0, b"abc"))
    recording = hub.recording()
    assert hub.files.tapes.find([recording.tape]) == [Found((3, 0), recording.size)]
