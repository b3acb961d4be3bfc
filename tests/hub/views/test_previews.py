"""What a change would do is told by the decision that would do it: the preview and the effect agree, on a real hub."""

from __future__ import annotations

from typing import Any

from tests.hub.asking import ask, wait_until
from tests.hub.views.test_cluster import get

from dray.testing import RunningHub, make_slots, make_spec, running_hub


def preview(
    hub: RunningHub, path: str, body: Any = None, token: str = "", method: str = "POST"
) -> dict[str, Any]:
    status, answer = ask(hub, method, f"{path}?dry_run=1", body, token=token)
    assert status == 200, answer
    return dict(answer["preview"])


def test_a_preview_changes_nothing_and_says_what_then_happens() -> None:
    with running_hub() as hub, hub.worker("w1", slots=make_slots(2), features=("job_started",)) as worker:
        ana, ben = hub.make_token("ana"), hub.make_token("ben")
        worker.register()
        worker.ready(2)
        spec = make_spec(id="many", array={"first": 0, "last": 9}, max_runtime_s=3600)
        assert ask(hub, "POST", "/jobs", spec, token=ana)[0] == 201
        assert ask(hub, "POST", "/jobs", make_spec(id="then", after=["ok:many"]), token=ana)[0] == 201
        tasks = [worker.assigned(), worker.assigned()]
        for task in tasks:
            worker.accept(task)
            worker.started(task)
        wait_until(lambda: get(hub, "/jobs/many")["tasks"]["running"] == 2)
        before = get(hub, "/jobs/many")

        told = preview(hub, "/jobs/many/cancel", token=ana)
        assert (told["stops"], told["never_start"], told["also"]) == (2, 8, ["then"])
        assert told["sentence"].startswith("Stops 2 tasks, ")
        assert preview(hub, "/jobs/many/cancel", {"task": 5}, ana)["never_start"] == 1
        assert preview(hub, "/jobs/many/requeue", {"task": 0}, ana)["stops"] == 1
        assert preview(hub, "/jobs/many/hold", token=ana) | {"undo": "release"} == preview(
            hub, "/jobs/many/hold", token=ana
        )
        changed = preview(hub, "/jobs/many", {"priority": 7}, ana, "PATCH")
        assert [(one["name"], one["new"]) for one in changed["changes"]] == [("priority", 7)]
        drained = preview(hub, "/workers/w1/drain", {"reason": "fans"})
        assert (drained["goes_on"], drained["stops"], drained["undo"]) == (2, 0, "resume")
        assert drained["until"] is not None
        assert preview(hub, "/workers/w1/drain", {"stop": True})["stops"] == 2
        assert "nothing" in preview(hub, "/jobs/then/release", token=ana)["sentence"].lower()

        # Whoever would be refused is; nothing at all was done.
        assert ask(hub, "POST", "/jobs/many/cancel?dry_run=1", token=ben)[0] == 404
        assert ask(hub, "POST", "/workers/w1/drain?dry_run=1", {}, token=ana)[0] == 403
        assert ask(hub, "PATCH", "/jobs/many?dry_run=1", {"gpu_count": 4}, token=ana)[0] in (400, 409)
        assert ask(hub, "PATCH", "/jobs/many?dry_run=1", {"colour": 4}, token=ana)[0] == 400
        assert get(hub, "/jobs/many") == before
        assert not get(hub, "/workers/w1")["draining"]

        # And then it is so.
        assert ask(hub, "POST", "/workers/w1/drain", {"stop": True})[0] == 200
        stopped = {worker.recv("job_cancel").payload["task_id"], worker.recv("job_cancel").payload["task_id"]}
        assert stopped == {task.task_id for task in tasks}
