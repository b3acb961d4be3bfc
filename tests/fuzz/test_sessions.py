"""A running hub under spoilt frames: it stays sound, says no more than it must, and shuts nobody out."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import msgspec
import psutil
import pytest
from tools.fuzz_live import LiveRun, call
from websockets import ConnectionClosed

from dray.testing import running_hub


@pytest.fixture(scope="module")
def hub():
    with running_hub() as running:
        yield running


def read_all(worker):
    """Everything up to the close; gives the messages and the close code."""
    heard = []
    with contextlib.suppress(TimeoutError):
        while True:
            try:
                heard.append(worker.recv(timeout_s=60))
            except ConnectionClosed as end:
                return heard, end.rcvd.code if end.rcvd else 1006
    return heard, 0


def test_a_short_attack_leaves_a_sound_hub():
    with running_hub(accept_s=2) as attacked:
        report = LiveRun(attacked, 1500, 4).run()
    assert report["findings"] == {}, json.dumps(report["findings"], indent=1)[:4000]
    assert report["frames"] >= 1500


def test_ten_bad_messages_in_one_frame_end_the_session(hub):
    with hub.worker("flood", msgpack=True) as worker:
        worker.send_raw(msgspec.msgpack.encode([{"type": "nonsense"}] * 60_000))
        heard, code = read_all(worker)
    assert [message.type for message in heard] == ["error"] * 10
    assert code == 4400


def test_a_good_message_between_bad_ones_keeps_the_session(hub):
    bad, good = {"type": "nonsense"}, {"type": "worker_list_request"}
    with hub.worker("mixed", msgpack=True) as worker:
        worker.send_raw(msgspec.msgpack.encode(([bad] * 9 + [good]) * 3))
        heard = Counter(worker.recv().type for _ in range(30))
    assert heard == {"error": 27, "worker_list_response": 3}


def test_questions_in_one_frame_do_not_pile_up(hub):
    before = psutil.Process(hub.pid).memory_info().rss
    with hub.worker("curious", msgpack=True) as worker:
        worker.send_raw(msgspec.msgpack.encode([{"type": "metrics_request"}] * 60_000))
        assert worker.recv("metrics_response")
        worker.drop()
    assert call(hub, "GET", "/hub")["ready"]
    assert psutil.Process(hub.pid).memory_info().rss - before < 128 << 20


def test_text_that_is_no_utf8_costs_only_its_session(hub):
    with hub.worker("garbled") as worker:
        for _ in range(3):
            worker.send("metrics_request", {})
        worker._connection().send(b"\xff\xfe", text=True)
        _, code = read_all(worker)
    assert code == 1007
    assert call(hub, "GET", "/hub")["ready"]
    assert "Traceback" not in (hub.home / "hub.err").read_text()


def test_a_word_raises_the_epoch_a_little_and_many_words_no_further():
    with running_hub(max_epoch_jump=100) as raised:
        with raised.worker("restored") as worker:
            worker.register(max_epoch_seen=101)
        epoch = call(raised, "GET", "/hub")["epoch"]
        assert epoch == 102
        with raised.worker("next") as worker:
            assert worker.register(max_epoch_seen=epoch).payload["epoch"] >= epoch
        for beyond in (200, (1 << 23) - 1, 1 << 60):
            with raised.worker("beyond") as worker:
                worker.send("register", worker.script.register(max_epoch_seen=beyond))
                assert "max_epoch_seen" in worker.recv("error").error
        assert call(raised, "GET", "/hub")["epoch"] <= epoch + 1
        assert "seen epoch 200" in (raised.home / "hub.err").read_text()


def test_workers_that_are_gone_make_room_and_those_that_are_there_do_not():
    with running_hub(max_workers=3) as small:
        for number in range(6):
            with small.worker(f"gone-{number}") as worker:
                worker.register()
        known = [line["id"] for line in call(small, "GET", "/workers")["workers"]]
        assert len(known) <= 3
        assert "gone-5" in known
        with small.worker("a") as one, small.worker("b") as two, small.worker("c") as three:
            for worker in (one, two, three):
                worker.register()
            with small.worker("d") as fourth:
                fourth.send("register", fourth.script.register())
                assert "max_workers" in fourth.recv("error").error
        assert call(small, "GET", "/doctor")["ok"]


def test_an_offer_has_a_size(hub):
    cards = [{"index": index, "model": "m" * 900} for index in range(400)]
    with hub.worker("large", msgpack=True) as worker:
        worker.send("register", worker.script.register(devices=cards))
        assert "what this worker offers takes" in worker.recv("error").error
        worker.register(devices=cards[:200])
        slots = {"batch_total": 1, "batch_in_use": 0, "service_total": 0, "service_in_use": 0}
        worker.send("heartbeat", {"worker_id": "large", "slots": slots, "capability": {}, "devices": cards})
        assert "what this worker offers takes" in worker.recv("error").error
