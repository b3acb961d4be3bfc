"""What a user wrote becomes a complete spec, or every problem it has at once."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dray.core.model.specs.check import FIELDS, check_spec
from dray.core.model.specs.spec import (
    ArraySpec,
    DeviceAsk,
    HealthCheck,
    JobSpec,
    Retries,
    pack_spec,
    spec_document,
    told_spec,
    unpack_spec,
)
from dray.core.model.specs.values import MAX_DEPTH
from dray.errors import InvalidSpec, Problem


def spec(**fields: Any) -> JobSpec:
    return check_spec({"command": ["true"], **fields})


def faults(**fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        spec(**fields)
    assert caught.value.problems
    return {problem.where: problem.what for problem in caught.value.problems}


NUMBERS = [
    "gpu_count node_count cpu_milli memory_bytes gpu_milli vram_per_gpu_bytes priority losses",
    "min_vram_gb min_cpu_cores max_runtime_hours max_runtime_s expected_runtime_s scheduling_timeout_s lost_after_s",
]
WHOLE, REAL = (names.split() for names in NUMBERS)
TEXTS = "gpu_type snapshot_id snapshot_sha name deadline workdir checkpoint template environment".split()
IDS = "id user_id queue workload plugin".split()
LISTS = "command prolog epilog require prefer notify notify_to".split()
MAPS = "env labels resources metadata health_check device array params rendered".split()
CHOICES = "type job_tier slot_pool gpu_backend overlap".split()


def test_every_field_is_in_one_of_the_groups_below() -> None:
    groups = [*WHOLE, *REAL, *TEXTS, *IDS, *LISTS, *MAPS, *CHOICES, "at_most_once", "function"]
    groups += (
        "variants after hold mixed_backends retries ports replicas restart interactive share uses".split()
    )
    groups += ["update", "objective"]
    assert sorted(groups) == sorted(FIELDS)
    assert sorted(FIELDS) == sorted(JobSpec.__struct_fields__)


@pytest.mark.parametrize("field", WHOLE)
@pytest.mark.parametrize(
    "value", ["1", 1.5, True, [], {}, 10**400, -(10**400), pytest.param(10**5000, id="huge"), math.nan]
)
def test_whole_numbers(field: str, value: Any) -> None:
    assert field in faults(**{field: value})


@pytest.mark.parametrize("field", REAL)
@pytest.mark.parametrize("value", ["1", True, [], -1, -0.001, math.nan, math.inf, -math.inf, 1e300, 10**400])
def test_real_numbers(field: str, value: Any) -> None:
    assert field in faults(**{field: value})


@pytest.mark.parametrize("field", [field for field in WHOLE if field != "priority"])
def test_negative_numbers(field: str) -> None:
    assert faults(**{field: -1})[field] == "must be 0 or more, got -1"


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("node_count", 4097, 4096),
        ("gpu_count", 10**6, 65536),
        ("gpu_milli", 1001, 1000),
        ("priority", 2**31, 2**31 - 1),
    ],
)
def test_absurd_numbers_name_the_limit(field: str, value: int, limit: int) -> None:
    assert faults(**{field: value})[field] == f"must be {limit} or less, got {value}"


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("value", [1, [], b"x", "a\0b", "\ud800", "x" * 5000])
def test_texts(field: str, value: Any) -> None:
    assert field in faults(**{field: value})


@pytest.mark.parametrize("field", IDS)
@pytest.mark.parametrize("value", [1, "a/b", "-x", "x" * 129, "a b"])
def test_ids(field: str, value: Any) -> None:
    assert field in faults(**{field: value})


@pytest.mark.parametrize("field", LISTS)
@pytest.mark.parametrize("value", ["echo hi", {"a": 1}, [1], ["a\0"], ["\udfff"], [None]])
def test_lists(field: str, value: Any) -> None:
    assert field in faults(**{field: value})


@pytest.mark.parametrize("field", MAPS)
@pytest.mark.parametrize("value", ["x", ["x"], 1])
def test_maps(field: str, value: Any) -> None:
    assert field in faults(**{field: value})


@pytest.mark.parametrize("field", CHOICES)
@pytest.mark.parametrize("value", ["nope", 1, []])
def test_choices(field: str, value: Any) -> None:
    assert "must be one of" in faults(**{field: value})[field]


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ({"command": []}, "command", "is empty: give the program to run and its arguments"),
        ({"command": ["", "x"]}, "command", "the program to run (item 0) is empty"),
        ({"command": ["a", "b\0"]}, "command", "item 1 holds a NUL character, which no program can be given"),
        ({"command": ["\ud800"]}, "command", "item 0 holds a lone surrogate, which is not valid UTF-8"),
        ({"env": {"A=B": "x"}}, "env", "has a name with '=' in it: 'A=B'"),
        ({"env": {"": "x"}}, "env", "has a bad name ''"),
        ({"env": {"A": 1}}, "env", "A must be text, got 1"),
        ({"resources": {"a b": 1}}, "resources", "has a bad name 'a b'"),
        ({"resources": {"a": -1}}, "resources", "a must be 0 or more, got -1"),
        ({"require": ["!a=b"]}, "require", "condition '!a=b' is not k=v, k!=v, k or !k"),
        ({"at_most_once": 1}, "at_most_once", "must be true or false, got 1"),
        ({"interactive": "yes"}, "interactive", "must be true or false, got 'yes'"),
        ({"function": "x", "command": []}, "function", "must be bytes"),
        ({"function": b"x"}, "function", "a job runs either a command or a function, not both"),
        ({"gpu_milli": 500, "gpu_count": 2}, "gpu_milli", "a share of a card goes with one card"),
        ({"gpu_milli": 500, "device": {"kind": "gpu", "count": 2}}, "gpu_milli", "a share of a card"),
        ({"device": {"kind": "cpu"}, "gpu_count": 1}, "device.kind", "is cpu, but gpu_count asks for 1"),
        ({"array": {"first": 5, "last": 4}}, "array.last", "must not be below first (5), got 4"),
        ({"array": {"last": 10**7}}, "array", "holds 10000001 tasks, the limit is 10000000"),
        ({"array": {"last": 1}, "node_count": 2}, "array", "an array of gangs is not possible"),
        ({"array": {"step": 0}}, "array.step", "must be 1 or more, got 0"),
        ({"array": {"laast": 1}}, "array.laast", "did you mean 'last'?"),
        ({"device": {"kind": "npu"}}, "device.kind", "must be one of cpu, gpu, tpu, got 'npu'"),
        ({"health_check": {"interval_secs": 0}}, "health_check.interval_secs", "must be 0.1 or more, got 0"),
        ({"type": "bacth"}, "type", "did you mean 'batch'?"),
        ({"gpu_cuont": 1}, "gpu_cuont", "is not a field of a job; did you mean 'gpu_count'?"),
        ({"zzz": 1}, "zzz", "is not a field of a job"),
        ({"after": ["when:x"]}, "after", "'when:x' must begin with ok:, any: or fail:"),
        ({"after": ["ok:"]}, "after", "'ok:' names no job"),
        ({"after": ["a", "fail:a"]}, "after", "names job a twice"),
        ({"after": ["b"] * 1025}, "after", "names 1025 jobs, the limit is 1024"),
        ({"id": "me", "after": ["any:me"]}, "after", "job me would wait for itself"),
        ({"deadline": "soon"}, "deadline", "'soon' is not a moment: write it as RFC 3339 does"),
        ({"deadline": "2030-01-31T18:00:00"}, "deadline", "with its offset"),
        ({"deadline": "2030-02-31T18:00:00Z"}, "deadline", "is not a moment"),
        ({"priority": 2**31}, "priority", "must be 2147483647 or less, got 2147483648"),
        ({"priority": -(2**31) - 1}, "priority", "must be -2.14748e+09 or more"),
        ({"gpu_count": 1.5}, "gpu_count", "must be whole cards, got 1.5"),
        ({"gpu_count": 2, "gpu_milli": 500}, "gpu_milli", "a share of a card goes with one card"),
        ({"metadata": {"a": [math.nan]}}, "metadata", "holds nan, which JSON cannot spell"),
        ({"metadata": {"a": {"b": 2**64}}}, "metadata", "does not fit into 64 bits"),
        ({"metadata": {"a": "\ud800"}}, "metadata", "lone surrogate"),
        ({"metadata": {1: "a"}}, "metadata", "has a bad name 1"),
        ({"metadata": {"a": {1, 2}}}, "metadata", "is not a JSON value"),
    ],
)
def test_faults_say_what_is_wrong(fields: dict[str, Any], where: str, what: str) -> None:
    assert what in faults(**fields)[where]


def test_metadata_may_not_be_nested_without_end() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 2):
        deep = {"deeper": deep}
    assert "nested deeper" in faults(metadata=deep)["metadata"]


def test_command_and_env_are_bounded_together() -> None:
    half = "x" * (128 * 1024)
    assert "256" not in spec(command=["a", half]).name
    assert "the limit is 262144" in faults(command=["a", half], env={"A": half})["command"]


def test_all_problems_come_at_once_and_the_first_is_told() -> None:
    raw = {"command": [1], "gpu_count": -1, "array": {"step": 0, "last": "x"}, "nmae": "x"}
    with pytest.raises(InvalidSpec) as caught:
        check_spec(raw)
    assert [problem.where for problem in caught.value.problems] == [
        "command",
        "gpu_count",
        "nmae",
        "array.step",
        "array.last",
    ]
    assert caught.value.message.startswith("the job cannot be accepted: command: item 0 must be text, got 1")
    assert caught.value.message.endswith("(and 4 more)")
    assert caught.value.problems[2] == Problem("nmae", "is not a field of a job; did you mean 'name'?")


def test_long_values_are_shortened() -> None:
    assert len(faults(gpu_count="x" * 10_000)["gpu_count"]) < 150


def test_defaults_are_filled_in() -> None:
    done = spec()
    assert (done.type, done.slot_pool, done.job_tier, done.priority) == (
        "batch",
        "batch",
        "data_processing",
        0,
    )
    assert (done.node_count, done.losses, done.retries, done.limit_s) == (1, 3, 0, 24 * 3600)
    assert (done.task_count, done.numbered) == (1, False)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"job_tier": "training"}, {"priority": 20}),
        ({"job_tier": "evaluation", "priority": -5}, {"priority": -5}),
        ({"job_tier": "", "priority": None}, {"job_tier": "data_processing", "priority": 0}),
        ({"type": "service"}, {"slot_pool": "service", "limit_s": 0}),
        ({"type": "service", "slot_pool": "batch"}, {"slot_pool": "batch"}),
        ({"node_count": 0}, {"node_count": 1, "task_count": 1, "numbered": False}),
        ({"node_count": 3}, {"task_count": 3, "numbered": True}),
        ({"min_vram_gb": 40}, {"gpu_count": 1}),
        ({"vram_per_gpu_bytes": 1}, {"gpu_count": 1}),
        ({"gpu_type": "A100"}, {"gpu_count": 1}),
        ({"gpu_type": "A100", "gpu_count": 4}, {"gpu_count": 4}),
        ({"gpu_milli": 500}, {"gpu_count": 1, "gpu_milli": 500}),
        ({"gpu_milli": 1000, "gpu_count": 2}, {"gpu_count": 2, "gpu_milli": 0}),
        ({"device": {"kind": "gpu", "count": 2}}, {"gpu_count": 2, "device": DeviceAsk("gpu", count=2)}),
        ({"device": {"kind": "gpu", "count": 0}}, {"gpu_count": 1}),
        ({"device": {"kind": "cpu"}}, {"gpu_count": 0}),
        ({"at_most_once": True, "retries": 4, "losses": 4}, {"retries": 0, "losses": 0}),
        ({"array": {"first": 1, "last": 9, "step": 4}}, {"task_count": 3, "numbered": True}),
        ({"array": {"last": 0}}, {"task_count": 1, "numbered": False}),
        ({"array": {"last": -1, "open": True}}, {"task_count": 0, "numbered": True}),
        ({"array": {"last": 3, "step": None}}, {"array": ArraySpec(last=3)}),
        ({"health_check": {"liveness": "/up"}}, {"health_check": HealthCheck(liveness="/up")}),
        ({"max_runtime_hours": 1}, {"limit_s": 3600}),
        ({"max_runtime_hours": 1, "max_runtime_s": 5}, {"limit_s": 5}),
        ({"max_runtime_hours": 1000}, {"limit_s": 168 * 3600}),
        ({"type": "service", "max_runtime_s": 9}, {"limit_s": 9}),
    ],
)
def test_completion(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    done = spec(**fields)
    assert {name: getattr(done, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"node_count": 1, "gpu_count": 0, "retries": 0, "env": {}, "array": None}),
        ({"min_vram_gb": 16}, {"min_vram_gb": 16.0, "gpu_count": 1}),
        ({"max_runtime_s": 0.0, "min_cpu_cores": 0}, {}),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "2", "A": "1"}}),
        ({"array": {"last": 4}}, {"array": {"step": 1, "first": 0, "last": 4, "limit": 0}}),
        ({"health_check": {}}, {"health_check": {"interval_secs": 10.0}}),
        ({"metadata": {"b": [1], "a": {"y": 1, "x": 2}}}, {"metadata": {"a": {"x": 2, "y": 1}, "b": [1]}}),
    ],
)
def test_equal_specs_have_equal_bytes(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert pack_spec(spec(**one)) == pack_spec(spec(**other))


@pytest.mark.parametrize(
    "fields", [{"min_vram_gb": 16}, {"array": {"last": 3}}, {"health_check": {"interval_secs": 3}}]
)
def test_packing_a_spec_read_back_gives_the_same_bytes(fields: dict[str, Any]) -> None:
    packed = pack_spec(spec(**fields))
    assert pack_spec(unpack_spec(packed)) == packed
    assert unpack_spec(packed) == spec(**fields)


def test_a_peer_always_sees_the_base_fields() -> None:
    document = spec_document(spec())
    assert document["command"] == ["true"]
    for field in ("type", "slot_pool", "gpu_count", "node_count", "env"):
        assert field in document
    assert "retries" not in document


def test_retries_are_a_number_or_rules() -> None:
    learns = spec(retries={"oom": "bigger", "node": "elsewhere", "code": 2})
    assert learns.retries == Retries(2, "bigger", "elsewhere")
    assert unpack_spec(pack_spec(learns)) == learns
    assert check_spec(spec_document(learns)) == learns
    # Rules that say no more than a number does are that number: equal specs have equal bytes.
    assert pack_spec(spec(retries={"code": 2, "oom": ""})) == pack_spec(spec(retries=2))
    assert spec(retries={"oom": "bigger"}, at_most_once=True).retries == 0
    assert faults(retries={"oom": "smaller", "node": 1, "code": -1, "disk": "x"}) == {
        "retries.oom": "must be one of bigger, got 'smaller'",
        "retries.node": "must be one of elsewhere, got 1",
        "retries.code": "must be 0 or more, got -1",
        "retries.disk": "is not a field of a job",
    }
    wrong: list[Any] = ["1", 1.5, True, [], 10**400]
    for value in wrong:
        assert "retries" in faults(retries=value)
    assert "rules for a command" in faults(command=[], function=b"f", retries={"oom": "bigger"})["retries"]


def test_a_worker_is_told_of_retries_in_the_words_of_the_first_version() -> None:
    """Agents of before know a number alone, and would refuse the rest."""
    told = told_spec(
        spec(retries={"oom": "bigger", "code": 2}, notify=["done"], notify_to=["https://example.org"])
    )
    assert told["retries"] == 2
    assert "notify_to" not in told
    assert "retries" not in told_spec(spec())
