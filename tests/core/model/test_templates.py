"""Templates as values: what a sound one is, what values make of it, and what is refused in which words."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.core.model.specs.check import check_spec
from dray.core.model.templates.parameters import Parameter, pattern_problem, read_value
from dray.core.model.templates.rendering import combine, edit_fault, render
from dray.core.model.templates.template import check_template, digest_of, pack_template, unpack_template
from dray.errors import InvalidInput, InvalidSpec

PARAMS: dict[str, Any] = {
    "gpus": {"type": "int", "default": 0, "min": 0, "max": 8},
    "lr": {"type": "float", "default": 0.1, "min": 0},
    "fast": {"type": "bool", "default": False},
    "mode": {"type": "choice", "choices": ["train", "eval"], "default": "train"},
    "memory": {"type": "size", "default": "1g", "max": "16g"},
    "limit": {"type": "duration", "default": "2h", "max": "1d"},
    "tag": {"type": "string", "max": 20},
}
SPEC: dict[str, Any] = {
    "command": ["train", "--lr=${lr}", "${tag}", "${gpus}", "${fast}", "${mode}", "$${tag}", "$(date)"],
    "gpus": "${gpus}",
    "memory": "${memory}",
    "time": "${limit}",
    "env": {"BYTES": "${memory}", "SECONDS": "${limit}"},
    "metadata": {"gpus": "${gpus}", "name": "${lr}"},
}


def make(**more: Any) -> dict[str, Any]:
    return {"name": "t", "params": PARAMS, "spec": SPEC, **more}


def told(document: Any) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as refused:
        check_template(document)
    return {problem.where: problem.what for problem in refused.value.problems}


def refused(params: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidInput) as fault:
        render(check_template(make()), params)
    return {problem.where: problem.what for problem in fault.value.problems}


def test_values_keep_their_type_alone_and_are_spelled_inside_texts() -> None:
    given = {"tag": "a b", "gpus": "2", "limit": "90s", "memory": "2g", "fast": "yes"}
    spec, values = render(check_template(make()), given)
    words = ["train", "--lr=0.1", "a b", "2", "true", "train", "${tag}", "$(date)"]
    assert spec["command"] == words
    assert (spec["gpu_count"], spec["memory_bytes"], spec["max_runtime_s"]) == (2, 2 << 30, 90)
    assert spec["env"] == {"BYTES": str(2 << 30), "SECONDS": "90"}
    assert spec["metadata"] == {"gpus": 2, "name": 0.1}
    assert (spec["type"], spec["cpu_milli"]) == ("batch", 1000)
    assert (values["limit"], values["mode"]) == (90, "train")
    assert check_spec(spec).command == words


def test_a_time_is_a_time_whatever_its_key_counts_in() -> None:
    spec, _ = render(check_template(make()), {"tag": "x", "limit": "1800"})
    assert spec["max_runtime_s"] == 1800


def test_every_wrong_value_is_told_with_its_name_what_was_given_and_what_is_allowed() -> None:
    assert refused({}) == {"params.tag": "is missing: give text of 0 to 20 characters in one line"}
    wrong = refused(
        {"tag": 3, "gpus": 9, "lr": "-1", "mode": "trian", "memory": "32g", "limit": "x", "gpu": 1}
    )
    assert wrong["params.gpus"] == "must be a whole number from 0 to 8, got 9"
    assert wrong["params.lr"] == "must be a number, 0 or more, got '-1'"
    assert wrong["params.mode"] == "must be one of train, eval, got 'trian'"
    assert wrong["params.memory"].endswith("16g or less, got '32g'")
    assert wrong["params.limit"].endswith("1d or less, got 'x'")
    assert wrong["params.gpu"].startswith("is not a parameter of the template; did you mean 'gpus'?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${gpus}", "without ${"),
        ("a$(rm -rf)", "without $("),
        ("a`b`", "without `"),
        ("a\nb", "the character '\\n' is not allowed"),
        ("a\x1b[0m", "the character '\\x1b' is not allowed"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("x" * 21, "got 21 characters"),
        (True, "got True"),
        (["a"], "got ['a']"),
    ],
)
def test_text_that_something_else_would_read_is_refused(text: Any, said: str) -> None:
    assert said in refused({"tag": text})["params.tag"]


def test_a_pattern_lets_through_what_it_names_and_no_more() -> None:
    parameter = Parameter(pattern=r"\$\([a-z]+\)|[0-9]{1,3}")
    assert read_value(parameter, "$(date)") == "$(date)"
    assert read_value(parameter, 12) == "12"
    with pytest.raises(InvalidInput, match="that matches"):
        read_value(parameter, "$(date); ls")
    assert read_value(Parameter(multiline=True), "a\n\tb") == "a\n\tb"


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)*", "(?=a)b", r"(a)\1", "a*a*a*a*b", "(", "(a*){1,9}"])
def test_patterns_that_could_take_for_ever_are_refused(pattern: str) -> None:
    assert pattern_problem(pattern)


@pytest.mark.parametrize("pattern", ["[a-z]+(?:-[0-9]{1,4})", r"[*+]*\(\)\*", "a|b|c", "[]+*)]+"])
def test_simple_patterns_are_welcome(pattern: str) -> None:
    assert not pattern_problem(pattern)


@pytest.mark.parametrize(
    ("spec", "where", "said"),
    [
        ({"command": ["${tag}"]}, "spec.command[0]", "would choose what is run"),
        ({"command": ["sh", "-c", "echo ${tag}"]}, "spec.command[2]", "would choose what is run"),
        ({"command": ["bash", "-lc", "echo ${tag}"]}, "spec.command[2]", "would choose what is run"),
        ({"command": ["x"], "prolog": ["${tag}"]}, "spec.prolog[0]", "would choose what is run"),
        ({"variants": [{"command": ["${tag}"]}]}, "spec.variants[0].command[0]", "would choose what is run"),
        ({"command": "${tag} x"}, "spec.command", "would choose what is run"),
        ({"command": ["x", "${tag"]}, "spec.command[1]", "no parameter"),
        ({"command": ["x", "${a${tag}}"]}, "spec.command[1]", "no parameter"),
        ({"command": ["x", "${tag:-y}"]}, "spec.command[1]", "no parameter"),
        ({"command": ["x", "${}"]}, "spec.command[1]", "no parameter"),
        ({"command": ["x", "${tga}"]}, "spec.command[1]", "did you mean 'tag'?"),
        ({"command": ["x"], "env": {"${tag}": "y"}}, "spec.env", "stands in a key"),
        ({"command": ["x"], "${tag}": "y"}, "spec", "stands in a key"),
        ({"command": ["x"], "id": "${tag}"}, "spec.id", "belongs to each job"),
        ({"command": ["x"], "template": "t"}, "spec.template", "belongs to each job"),
        ({"command": ["x"], "comand": ["${tag}"]}, "spec.comand", "did you mean 'command'?"),
        ({"command": ["x"]}, "params.tag", "is used nowhere"),
    ],
)
def test_where_a_parameter_may_not_stand(spec: dict[str, Any], where: str, said: str) -> None:
    assert said in told({"name": "t", "params": {"tag": {}}, "spec": spec})[where]


def test_a_template_may_say_that_parameters_choose_the_program() -> None:
    spec = {"command": ["${tag}", "-c", "${tag}"]}
    template = check_template({"name": "t", "params": {"tag": {}}, "spec": spec, "allow_program": True})
    assert render(template, {"tag": "ls"})[0]["command"] == ["ls", "-c", "ls"]


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ([], "template"),
        ({"spec": {"command": ["x"]}}, "name"),
        (make(name="../x"), "name"),
        (make(name="a/b"), "name"),
        (make(name="a@1"), "name"),
        (make(name="a\0"), "template"),
        (make(name="x" * 65), "name"),
        (make(kind="cron"), "kind"),
        (make(spec={}), "spec"),
        (make(spec={"command": ["x" * 70_000]}), "template"),
        (make(spec={"command": ["x"] * 3000}), "template"),
        (make(parms={}), "parms"),
        (make(open=["comand"]), "open"),
        (make(open=["id"]), "open"),
        (make(params={f"p{number}": {} for number in range(65)}), "params"),
        (make(params={**PARAMS, "tag": "text"}), "params.tag"),
        (make(params={**PARAMS, "tag": {"type": "list"}}), "params.tag.type"),
        (make(params={**PARAMS, "tag": {"defualt": 1}}), "params.tag.defualt"),
        (make(params={**PARAMS, "tag": {"max": "many"}}), "params.tag.max"),
        (make(params={**PARAMS, "tag": {"min": 3, "max": 2}}), "params.tag.min"),
        (make(params={**PARAMS, "gpus": {"type": "int", "default": 9, "max": 8}}), "params.gpus.default"),
        (make(params={**PARAMS, "mode": {"type": "choice"}}), "params.mode.choices"),
        (make(params={**PARAMS, "1x": {}}), "params.1x"),
    ],
)
def test_bad_documents_are_refused_where_they_are_wrong(document: Any, where: str) -> None:
    assert where in told(document)


def test_what_a_template_asks_for_stays_whatever_is_given_beside_it() -> None:
    template = check_template(
        make(
            spec={**SPEC, "require": ["zone=${mode}"], "labels": {"team": "a"}, "queue": "gold"},
            open=["retries"],
        )
    )

    def beside(**more: Any) -> dict[str, Any]:
        return combine(template, 3, "sha256:x", {"template": "t", "params": {"tag": "x"}, **more})

    spec = beside(name="n", labels={"k": "v"}, require=["ssd"], retries=2, env={"A": "b"})
    assert spec["require"] == ["zone=train", "ssd"]
    assert spec["labels"] == {"team": "a", "k": "v"}
    assert (spec["template"], spec["name"], spec["retries"], spec["env"]["A"]) == ("t@3", "n", 2, "b")
    assert (spec["params"]["tag"], spec["params"]["gpus"]) == ("x", 0)
    for more, where in (
        ({"gpu_count": 4}, "gpu_count"),
        ({"command": ["sh"]}, "command"),
        ({"queue": "default"}, "queue"),
        ({"labels": {"team": "b"}}, "labels"),
        ({"env": {"BYTES": "1"}}, "env"),
        ({"variants": []}, "variants"),
        ({"type": "service"}, "type"),
        ({"rendered": {}}, "rendered"),
    ):
        with pytest.raises(InvalidSpec) as fault:
            beside(**more)
        assert [problem.where for problem in fault.value.problems] == [where]
    use = check_spec(spec).rendered
    assert use is not None
    assert not any(edit_fault(use, field) for field in ("name", "retries"))
    assert all(edit_fault(use, field) for field in ("queue", "require", "cpu_milli"))


def test_a_value_does_not_change_the_meaning_of_a_condition_on_workers() -> None:
    document = {"name": "t", "params": {"zone": {}}, "spec": {"command": ["x"], "require": ["zone=${zone}"]}}
    template = check_template(document)
    assert render(template, {"zone": "eu-1"})[0]["require"] == ["zone=eu-1"]
    with pytest.raises(InvalidSpec, match="would change its meaning"):
        render(template, {"zone": "a b"})


TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
PLAIN = TEXTS.filter(lambda text: text.isprintable() and not any(mark in text for mark in ("${", "$(", "`")))


@given(PLAIN, st.integers(0, 8), st.floats(0, 1e9))
def test_a_value_stands_where_it_was_put_and_nowhere_else(tag: str, gpus: int, lr: float) -> None:
    template = check_template(make())
    spec, _ = render(template, {"tag": tag, "gpus": gpus, "lr": lr})
    assert spec["command"][2] == tag
    assert spec["command"][1] == f"--lr={lr!r}"
    # The same values as text, as a command line gives them.
    again, _ = render(template, {"tag": tag, "gpus": str(gpus), "lr": repr(lr)})
    assert again == spec


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_whatever_is_written_is_a_template_or_a_told_problem(spec: Any, params: Any) -> None:
    with contextlib.suppress(InvalidSpec):
        template = check_template({"name": "t", "spec": spec, "params": params})
        assert digest_of(unpack_template(pack_template(template))) == digest_of(template)


@given(st.dictionaries(st.sampled_from([*PARAMS, "other"]), JSON, max_size=7))
def test_whatever_is_given_makes_a_job_or_a_told_problem(params: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidInput):
        spec, _ = render(check_template(make()), params)
        check_spec(spec)
