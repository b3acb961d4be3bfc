"""Preemptions at the command line: what is asked of the hub, and how receipts look to a person."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.whole import whole

from dray.cli.jobs.job_views import draw_event
from dray.cli.jobs.preemption_views import draw_receipt, draw_receipts, tell_receipts
from dray.cli.main import main
from dray.wire.schemas.site import PreemptionDocument, PreemptionStatistics, VictimDocument

NOW = "2026-11-15T09:10:49.123Z"
LATER = datetime(2026, 11, 15, 9, 13, 49, tzinfo=UTC)


def victim(task: str | None = "low", **changes: Any) -> dict[str, Any]:
    job = task.partition("/")[0] if task else None
    document = {
        "job_id": job,
        "task_id": task,
        "user": "ben" if task else None,
        "worker": "w1",
        "priority": 1,
        "ran_s": 192,
        "lost_s": 72.5,
        "members": 1,
        "saved_step": None,
        "grace_s": 30,
        "state": "waiting",
        "gone_at": NOW,
        "back_at": None,
        "back_on": "",
        "earliest_back_at": None,
    }
    made: dict[str, Any] = whole(VictimDocument, {**document, **changes})
    return made


def receipt(number: int = 1, **changes: Any) -> dict[str, Any]:
    document = {
        "id": f"p{number}",
        "status": "served",
        "rule": "priority",
        "kind": "gpu",
        "job_id": "high",
        "task_id": "high",
        "user": "ana",
        "priority": 5,
        "queue": "prod",
        "workers": ["w1"],
        "victims": [victim()],
        "lost_s": 72.5,
        "decided_at": NOW,
        "served_at": NOW,
        "ended_at": NOW,
        "wait_s": 2.4,
    }
    made: dict[str, Any] = whole(PreemptionDocument, {**document, **changes})
    return made


STATISTICS: dict[str, Any] = {
    "window_s": 86400,
    "receipts": 2,
    "victims": 3,
    "lost_s": 145,
    "by_rule": {"fair_share": 1, "priority": 1},
    "by_status": {"rolled_back": 1, "served": 1},
    "serve_p50_s": 2.4,
    "users": [{"user": "ben", "stopped": 3, "lost_s": 145, "preempted": 0}, {"user": "ana", "preempted": 2}],
}


def page(*receipts: dict[str, Any], cursor: str | None = None) -> tuple[int, dict[str, Any]]:
    return 200, {"preemptions": list(receipts), "next_cursor": cursor, "statistics": STATISTICS}


def test_the_list(hub, capsys):
    other = receipt(2, status="rolled_back", rule="fair_share", task_id=None, job_id=None, wait_s=None)
    other["victims"] = [victim("low/3"), victim("low/4"), victim("low/5"), victim(None)]
    hub.canned["GET", "/preemptions"] = page(other, receipt())
    assert main(["preemptions", "--user", "ben", "--job", "low/3", "--window", "7d"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == "RECEIPT AGE FOR USER PRIO RULE STOPPED LOST ON STATUS WAITED".split()
    assert "(another's)" in lines[1]
    assert "fair share  low/3, low/4, 1 more, 1 of others" in lines[1]
    assert lines[1].split()[-3:] == ["rolled", "back", "-"]
    assert lines[2].split()[2:] == "high ana 5 priority low 1m12s w1 served 2s".split()
    assert lines[4:] == [
        "last 1d    2 preemptions (1 by fair share, 1 by priority; 1 rolled back, 1 served)",
        "stopped    3 tasks, 2m25s of work lost",
        "served     half of them within 2.4s",
        "most lost  ben 2m25s (3 tasks)",
    ]
    assert main(["preemptions", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["statistics"] == whole(PreemptionStatistics, STATISTICS)


def test_nothing_happened(hub, capsys):
    hub.canned["GET", "/preemptions"] = (200, {"preemptions": [], "statistics": {"window_s": 86400}})
    assert main(["preemptions"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "no preemptions: nobody was stopped for other work\n")


def test_a_receipt_and_a_filter_do_not_go_together(hub, capsys):
    assert main(["preemptions", "p1", "--user", "ben"]) == 2
    assert "not both" in capsys.readouterr().err


def test_one_that_is_not_there(hub, capsys):
    message = "there is no receipt 'p9', or it is not yours"
    hub.canned["GET", "/preemptions/p9"] = (404, {"error": {"code": "not_found", "message": message}})
    assert main(["preemptions", "p9"]) == 1
    assert message in capsys.readouterr().err


def test_the_receipt(hub, capsys):
    hub.canned["GET", "/preemptions/p1"] = (200, receipt())
    assert main(["preemptions", "p1"]) == 0
    shown = capsys.readouterr().out
    assert "status    served: the room was given to the job that it was made for" in shown
    assert "made for  high of ana, priority 5, queue prod" in shown
    assert "rule      priority: work of lower priority makes room" in shown
    assert "resource  GPUs" in shown
    assert ", 2.4s after the decision" in shown
    assert "cost      1 task stopped, 1m12s of work lost" in shown
    assert shown.splitlines()[-1].split()[:7] == "low ben 1 w1 3m12s 1m12s 30s".split()
    assert main(["preemptions", "p1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == receipt()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "stopping"}, "stopping, killed at "),
        ({"state": "stopping", "moved_to": "w2"}, ", moves to w2"),
        ({"state": "running", "moved_to": "w2"}, "1 task stopped, 1 of them moved"),
        ({"state": "waiting"}, "waits, first in its band"),
        ({"state": "waiting", "saved_step": 7, "earliest_back_at": NOW}, "band, goes on from step 7; room by "),
        ({"state": "running", "back_at": NOW, "back_on": "w2"}, "runs again since "),
        ({"state": "running", "back_at": NOW, "back_on": "w2", "saved_step": 7}, "runs again from step 7 since "),
        ({"state": "starting"}, "starts again"),
        ({"state": "gone"}, "gone since "),
        ({"state": "succeeded", "back_at": NOW, "back_on": "w2"}, "succeeded, ran again from "),
        ({"state": "worker_failed"}, "worker failed"),
    ],
)  # fmt: skip
def test_what_became_of_a_victim(changes: dict[str, Any], words: str):
    assert words in draw_receipt(receipt(victims=[victim(**changes)]))


def test_others_jobs_have_no_name():
    shown = draw_receipt(receipt(job_id=None, task_id=None, victims=[victim(None, state="gone")]))
    assert "a job of ana, priority 5" in shown
    assert "(another's)" in shown
    assert "None" not in shown


def test_a_gang_goes_whole():
    gang = [victim("train/0", members=4), victim("train/1", members=0, lost_s=0), victim(None, members=2)]
    shown = draw_receipt(receipt(victims=gang))
    assert "cost      6 tasks stopped" in shown
    assert "train/0 and its gang " in shown
    table = draw_receipts({"preemptions": [receipt(victims=gang)], "statistics": {}})
    assert "train/0 and its gang, 2 of others" in table


def test_the_list_on_a_narrow_terminal():
    answer = {
        "preemptions": [receipt(victims=[victim("a-very-long-name-of-a-job/17")])],
        "statistics": STATISTICS,
    }
    table = draw_receipts(answer, 60, LATER).partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 60
    assert "STATUS" in table
    assert "3m00s" in table or "2m59s" in table


def test_show_mentions_receipts(hub, capsys):
    hub.set("low")
    hub.canned["GET", "/preemptions"] = page(receipt(3), receipt(1))
    assert main(["show", "low"]) == 0
    assert (
        "preemption  stopped for others twice (p3, p1): see `dray preemptions p3`" in capsys.readouterr().out
    )
    both = [receipt(4, job_id="low", task_id="low", victims=[victim(None)]), receipt(2)]
    assert tell_receipts(both, "low") == (
        "stopped for others once (p2); others stopped for it once (p4): see `dray preemptions p2`"
    )
    assert tell_receipts(both, "another") == ""
    assert tell_receipts([receipt(5, victims=[victim("low/3")])], "low", "low/3").startswith("stopped for")
    assert tell_receipts([receipt(5, victims=[victim("low/3")])], "low", "low/4") == ""


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"type": "preemption_decided", "rule": "fair_share", "workers": ["w1", "w2"], "victims": 2, "lost_s": 3},
            "high 2 tasks on w1, w2 are asked to stop for it (by fair share, p7)",
        ),
        (
            {"type": "task_preempting", "by": "ana", "rule": "priority", "grace_s": 30, "worker": "w1"},
            "high asked to stop within 30s for a job of ana (by priority, p7)",
        ),
        (
            {"type": "preemption_decided", "rule": "srsf", "workers": ["w1"], "victims": 2, "moved": 1},
            "high 2 tasks on w1 are asked to stop for it, 1 of them to move (by srsf, p7)",
        ),
        (
            {"type": "task_preempting", "by": "ana", "rule": "moves", "grace_s": 30, "worker": "w1", "to": "w2"},
            "high asked to stop within 30s and move to w2 to make room for a job of ana (by moves, p7)",
        ),
        ({"type": "preemption_rolled_back"}, "high the job no longer waits; the room goes to whoever is next (p7)"),
        ({"type": "job_edited", "user": "ana"}, "high user=ana receipt=p7"),
    ],
)  # fmt: skip
def test_events_in_words(event: dict[str, Any], words: str):
    assert draw_event({"at": NOW, "job_id": "high", **event, "receipt": "p7"}).endswith(words)
