"""Templates of a real hub: added, used, kept over restarts, refused, and what becomes of jobs made by them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub.asking import ask

from dray.errors import InvalidInput, InvalidSpec
from dray.hub.templates import changes
from dray.testing import RunningHub, make_capability, make_slots, make_spec, running_hub

TRAIN: dict[str, Any] = {
    "name": "train",
    "params": {"lr": {"type": "float", "default": 0.1, "max": 1}, "tag": {}},
    "spec": {"command": ["echo", "--lr=${lr}", "${tag}"], "memory": "1g", "require": ["ssd"]},
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with running_hub(tmp_path_factory.mktemp("hub") / "h") as running:
        yield running


def named(name: str, **more: Any) -> dict[str, Any]:
    return {**TRAIN, "name": name, **more}


def problems(answer: Any) -> dict[str, str]:
    return {problem["where"]: problem["what"] for problem in answer["error"]["problems"]}


def test_versions_are_counted_and_the_same_again_adds_none(hub: RunningHub) -> None:
    status, first = ask(hub, "POST", "/templates", named("counted"))
    assert (status, first["version"], first["created"]) == (200, 1, True)
    assert [one["name"] for one in first["params"]] == ["lr", "tag"]
    again = ask(hub, "POST", "/templates", named("counted"))[1]
    assert (again["version"], again["created"], again["digest"]) == (1, False, first["digest"])
    second = ask(hub, "POST", "/templates", named("counted", about="longer"))[1]
    assert (second["version"], second["created"]) == (2, True)
    assert ask(hub, "GET", "/templates/counted?version=1")[1]["about"] == ""
    assert ask(hub, "GET", "/templates/counted")[1]["about"] == "longer"
    listed = {one["name"]: one for one in ask(hub, "GET", "/templates")[1]["templates"]}
    assert listed["counted"]["version"] == 2
    history = ask(hub, "GET", "/templates/counted/history")[1]
    assert [one["version"] for one in history["versions"]] == [2, 1]
    status, absent = ask(hub, "GET", "/templates/counted?version=7")
    assert (status, absent["error"]["message"]) == (404, "template 'counted' has no version 7: there is 1, 2")


def test_two_who_add_at_once_get_a_version_each(hub: RunningHub) -> None:
    documents = [named("raced", about=str(number)) for number in range(8)]
    got: list[tuple[int, str]] = []

    def add(document: dict[str, Any]) -> None:
        answer = ask(hub, "POST", "/templates", document)[1]
        got.append((answer["version"], answer["about"]))

    threads = [threading.Thread(target=add, args=(document,)) for document in documents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version for version, _ in got) == list(range(1, 9))
    for version, about in got:
        assert ask(hub, "GET", f"/templates/raced?version={version}")[1]["about"] == about


def test_a_job_by_a_template_says_so_and_keeps_what_the_template_set(hub: RunningHub) -> None:
    digest = ask(hub, "POST", "/templates", named("used"))[1]["digest"]
    body = {"template": "used", "params": {"tag": "x", "lr": "0.5"}, "hold": True, "require": ["nvme"]}
    status, job = ask(hub, "POST", "/jobs", body)
    assert status == 201
    spec = ask(hub, "GET", f"/jobs/{job['id']}")[1]["spec"]
    assert (spec["template"], spec["rendered"]["digest"]) == ("used@1", digest)
    assert spec["command"] == ["echo", "--lr=0.5", "x"]
    assert spec["require"] == ["ssd", "nvme"]
    assert spec["params"] == {"lr": 0.5, "tag": "x"}
    path = f"/jobs/{job['id']}"
    assert ask(hub, "PATCH", path, {"name": "n", "priority": 3})[0] == 200
    for changes_, where in (
        ({"memory_bytes": 1}, "memory_bytes"),
        ({"require": []}, "require"),
        ({"rendered": None}, "rendered"),
        ({"template": "other"}, "template"),
    ):
        status, answer = ask(hub, "PATCH", path, changes_)
        assert (status, list(problems(answer))) == (400, [where])

    # It is gone, and the job is whole.
    assert ask(hub, "DELETE", "/templates/used")[1]["removed"] is True
    assert ask(hub, "GET", path)[1]["spec"]["template"] == "used@1"
    status, answer = ask(hub, "POST", "/jobs", body)
    assert (status, list(problems(answer))) == (400, ["template"])
    assert ask(hub, "GET", "/templates/used")[0] == 404
    # What comes next under the name is another version.
    assert ask(hub, "POST", "/templates", named("used"))[1]["version"] == 2
    assert ask(hub, "GET", "/templates/used?version=1")[0] == 404


def test_what_is_wrong_with_a_submit_by_template_is_told_by_place(hub: RunningHub) -> None:
    ask(hub, "POST", "/templates", named("told"))
    for body, where in (
        ({"template": "told", "params": {"lr": 3}}, ["params.lr", "params.tag"]),
        ({"template": "told", "params": ["lr"]}, ["params"]),
        ({"template": "told", "params": {"tag": "x"}, "gpu_count": 1}, ["gpu_count"]),
        ({"template": "told@x", "params": {}}, ["template"]),
        ({"template": "../told", "params": {}}, ["template"]),
        ({"template": {"name": "told"}, "params": {}}, ["template"]),
        ({"template": "tolled", "params": {}}, ["template"]),
        ({"command": ["x"], "params": {"a": 1}}, ["params"]),
        ({"command": ["x"], "rendered": {"digest": "sha256:0"}}, ["rendered"]),
        ({"template": "told", "params": {"tag": "x"}, "rendered": {"open": ["command"]}}, ["rendered"]),
    ):
        status, answer = ask(hub, "POST", "/jobs", body)
        assert (status, sorted(problems(answer))) == (400, where), body
        assert ask(hub, "POST", "/plan", body)[0] == 400
    two = [{"template": "told", "params": {"tag": "x"}}, {"template": "told"}]
    assert list(problems(ask(hub, "POST", "/jobs:batch", two)[1])) == ["[1].params.tag"]


def test_whoever_may_submit_may_use_and_only_admins_may_change(hub: RunningHub) -> None:
    ask(hub, "POST", "/templates", named("shared"))
    made = ask(hub, "POST", "/tokens", {"user": "ann", "scopes": ["submit"]})[1]["token"]
    assert ask(hub, "POST", "/templates", named("mine"), token=made)[0] == 403
    assert ask(hub, "DELETE", "/templates/shared", token=made)[0] == 403
    assert ask(hub, "GET", "/templates/shared", token=made)[0] == 200
    body = {"template": "shared", "params": {"tag": "x"}}
    rendered = ask(hub, "POST", "/templates/shared/render", {"params": body["params"]}, token=made)[1]
    assert rendered["spec"]["command"] == ["echo", "--lr=0.1", "x"]
    status, answer = ask(hub, "POST", "/templates/nobody/render", {"params": {}}, token=made)
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert ask(hub, "POST", "/jobs", body, token=made)[0] == 201
    looks = ask(hub, "POST", "/tokens", {"user": "bob", "scopes": ["read"]})[1]["token"]
    assert ask(hub, "POST", "/jobs", body, token=looks)[0] == 403


def test_bad_templates_and_bad_names_are_refused(hub: RunningHub) -> None:
    for document, where in (
        (named("a/b"), "name"),
        (named(".."), "name"),
        (named("x\0y"), "template"),
        (named("wide", spec={"command": ["x" * (7 << 20)]}), "template"),
        (named("shell", spec={"command": ["sh", "-c", "echo ${tag} ${lr}"]}), "spec.command[2]"),
        (named("unsound", spec={"command": ["x", "${tag}", "${lr}"], "memory": "lots"}), "spec.memory"),
        (named("empty", spec={"env": {"A": "${tag}${lr}"}}), "spec.command"),
    ):
        status, answer = ask(hub, "POST", "/templates", document)
        assert status == 400, document["name"]
        assert where in problems(answer)
    assert ask(hub, "POST", "/templates", [])[0] == 400
    assert ask(hub, "POST", "/templates", named("huge", spec={"command": ["x" * (10 << 20)]}))[0] == 413
    for path in ("..", "a%2Fb", "%00", "a@b@c"):
        assert ask(hub, "GET", f"/templates/{path}")[0] in (400, 404)


def test_templates_and_their_removal_outlive_the_hub(tmp_path) -> None:
    with running_hub(tmp_path / "h") as hub:
        for document in (named("kept"), named("kept", about="2"), named("gone")):
            assert ask(hub, "POST", "/templates", document)[0] == 200
        ask(hub, "DELETE", "/templates/gone")
        before = [
            ask(hub, "GET", path)
            for path in ("/templates", "/templates/kept?version=1", "/templates/gone/history")
        ]
        hub.restart()
        after = [
            ask(hub, "GET", path)
            for path in ("/templates", "/templates/kept?version=1", "/templates/gone/history")
        ]
        assert after == before
        assert after[2][1]["removed_at"]
        assert ask(hub, "POST", "/templates", named("gone"))[1]["version"] == 2
        acts = [line["action"] for line in ask(hub, "GET", "/audit")[1]["records"]]
        assert (acts.count("add_template"), acts.count("remove_template")) == (4, 1)


def test_there_is_an_end_to_how_many_and_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    from dray.core.lifecycle.apply import apply
    from dray.core.lifecycle.state.events import Clock
    from dray.core.lifecycle.state.state import State
    from dray.core.model.templates.template import check_template
    from dray.errors import Conflict
    from dray.hub.access.caller import Caller
    from dray.hub.templates.library import record_of, stored

    monkeypatch.setattr(changes, "MAX_TEMPLATES", 3)
    state, caller, clock = State(), Caller("t", "root", ("admin",)), Clock(1, 1)

    def take(decide: Any) -> None:
        nonlocal clock
        clock = Clock(clock.now_ms + 1, clock.at_ms + 1)
        for event in decide(state, clock).events:
            apply(state, event, clock)

    def add(name: str, about: str = "") -> None:
        take(changes.add(caller, check_template(named(name, about=about)), lambda after, created: None))

    for name in ("a", "b", "c"):
        add(name)
    with pytest.raises(Conflict, match="3 templates, the limit"):
        add("d")
    take(changes.remove(caller, "b", lambda after, done: None))
    add("d")
    assert sorted(stored(state)) == ["a", "c", "d"]
    for number in range(50):
        add("a", str(number))
    record = record_of(state, "a")
    assert record is not None
    assert [one.version for one in record.versions] == list(range(32, 52))
    monkeypatch.setattr(changes, "MAX_BYTES_IN_ALL", 1000)
    with pytest.raises(Conflict, match="1000 in all"):
        add("a", "x")


def test_python_submits_by_template(hub: RunningHub) -> None:
    ask(hub, "POST", "/templates", named("python"))
    with hub.connect() as client:
        job = client.submit(template="python", params={"tag": "x"}, name="mine", hold=True)
        spec = ask(hub, "GET", f"/jobs/{job.id}")[1]["spec"]
        assert (spec["template"], spec["name"], spec["command"][2]) == ("python@1", "mine", "x")
        assert spec["workdir"]
        assert "PATH" in spec["env"]
        with pytest.raises(InvalidSpec, match=r"params\.tag"):
            _ = client.submit(template="python")
        with pytest.raises(InvalidInput, match="nothing is to be run"):
            _ = client.submit()


def test_the_policy_says_who_may_use_a_template_and_how_much_it_may_have(tmp_path) -> None:
    with running_hub(tmp_path / "h") as hub:
        wide = named("wide", spec={"command": ["echo", "${lr}", "${tag}"], "gpus": 1})
        for document in (named("kept"), wide):
            assert ask(hub, "POST", "/templates", document)[0] == 200
        policy = {
            "templates": {"kept": {"users": ["ben"]}},
            "quotas": [{"template": "wide", "gpus": 1, "jobs": 3}],
        }
        assert ask(hub, "PUT", "/policy", policy)[0] == 200
        ana, ben = hub.make_token("ana"), hub.make_token("ben")
        body = {"template": "kept", "params": {"tag": "x"}, "hold": True}
        status, refused = ask(hub, "POST", "/jobs", body, token=ana)
        assert (status, refused["error"]["message"]) == (
            403,
            "template kept is for ben (the policy's templates), and not for ana",
        )
        assert ask(hub, "POST", "/plan", body, token=ana)[0] == 403
        assert ask(hub, "POST", "/jobs", body, token=ben)[0] == 201

        # One card for all jobs by the template, whoever submits them; a plain job is free of it.
        with hub.worker("w1", capability=make_capability(gpus=3), slots=make_slots(4)) as worker:
            worker.register()
            worker.ready(4)
            asked = {"template": "wide", "params": {"tag": "x"}}
            first = ask(hub, "POST", "/jobs", asked, token=ana)[1]["id"]
            task = worker.assigned(60)
            assert task.task_id == first
            second = ask(hub, "POST", "/jobs", asked, token=ben)[1]["id"]
            why = ask(hub, "GET", f"/jobs/{second}/why", token=ben)[1]
            assert "template wide holds 1 of 1 GPUs" in why["summary"]
            plain = ask(hub, "POST", "/jobs", make_spec(gpu_count=1), token=ana)[1]["id"]
            assert worker.assigned(60).task_id == plain
            assert ask(hub, "POST", "/jobs", asked, token=ben)[0] == 201
            status, refused = ask(hub, "POST", "/jobs", asked, token=ben)
            assert (status, refused["error"]["message"][:36]) == (409, "template wide has 3 of 3 jobs that w")
            worker.accept(task)
            worker.result(task)
        used = ask(hub, "GET", "/usage?by=template")[1]["usage"]
        assert {one["name"]: one["attempts"] for one in used}["wide"] >= 1
