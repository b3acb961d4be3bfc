"""Alternatives of a job: each laid over it must stand by itself, and no two may say the same."""

from __future__ import annotations

from typing import Any

import pytest

from dray.core.model.specs.check import check_spec
from dray.core.model.specs.resources import asks_of
from dray.core.model.specs.spec import JobSpec, pack_spec, unpack_spec, with_variant
from dray.errors import InvalidSpec


def spec(variants: list[Any], **fields: Any) -> JobSpec:
    return check_spec({"command": ["train"], "variants": variants, **fields})


def faults(variants: Any, **fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        spec(variants, **fields)
    return {problem.where: problem.what for problem in caught.value.problems}


def test_each_alternative_runs_as_if_it_were_the_job() -> None:
    """What a job of its own would be is what the alternative laid over the job must be."""
    base: dict[str, Any] = {
        "command": ["train"],
        "env": {"A": "1", "B": "1"},
        "cpu_milli": 1000,
        "retries": 2,
    }
    variants: list[dict[str, Any]] = [
        {"name": "big", "gpu_type": "A100", "gpu_count": 2, "vram_per_gpu_bytes": 40 * 10**9},
        {"name": "mac", "gpu_backend": "metal", "gpu_count": 1, "env": {"B": "2"}, "command": ["mlx"]},
        {"name": "share", "gpu_milli": 500},
        {"name": "slow", "cpu_milli": 16000, "expected_runtime_s": 900, "require": ["disk=ssd"]},
        {"name": "tpu", "device": {"kind": "tpu", "count": 4}, "resources": {"license": 1}},
    ]
    made = check_spec({**base, "variants": variants})
    for number, variant in enumerate(variants):
        env = {**base["env"], **variant.get("env", {})}
        alone = check_spec({**base, **{k: v for k, v in variant.items() if k != "name"}, "env": env})
        assert with_variant(made, number) == alone
    assert [ask.gpus for ask in asks_of(made)] == [2, 1, 1, 0, 4]
    assert unpack_spec(pack_spec(made)) == made


def test_the_command_may_be_left_to_the_alternatives() -> None:
    made = check_spec({"variants": [{"command": ["cuda"], "gpu_count": 1}, {"command": ["cpu"]}]})
    assert [with_variant(made, number).command for number in (0, 1)] == [["cuda"], ["cpu"]]
    with pytest.raises(InvalidSpec) as caught:
        check_spec({"variants": [{"command": ["cuda"], "gpu_count": 1}, {"cpu_milli": 1000}]})
    assert [problem.where for problem in caught.value.problems] == ["variants[1].command"]
    with pytest.raises(InvalidSpec) as caught:
        check_spec({"variants": [{"gpu_count": 1}, {"cpu_milli": 1000}]})
    assert [problem.where for problem in caught.value.problems] == ["command"]


def test_no_cards_means_none_of_what_was_asked_of_them() -> None:
    made = spec([{"gpu_count": 0, "cpu_milli": 8000}, {"gpu_milli": 500}], gpu_type="A100", min_vram_gb=16)
    slow = with_variant(made, 0)
    assert (slow.gpu_count, slow.gpu_type, slow.min_vram_gb, slow.cpu_milli) == (0, "", 0, 8000)
    assert with_variant(made, 1).gpu_type == "A100"
    found = faults([{"gpu_count": 0}], device={"kind": "gpu"})
    assert "give the alternative a device of its own" in found["variants[0].gpu_count"]


def test_equal_alternatives_have_equal_bytes() -> None:
    first = spec([{"gpu_count": 1, "cpu_milli": 1000}], cpu_milli=1000)
    second = spec([{"gpu_count": 1, "gpu_milli": None, "env": {}}], cpu_milli=1000)
    assert pack_spec(first) == pack_spec(second)


@pytest.mark.parametrize(
    ("variants", "where", "what"),
    [
        ([], "variants", "is empty"),
        ({"gpu_count": 1}, "variants", "must be a list of objects"),
        ([{}], "variants[0]", "is empty: say what differs"),
        ([{"name": "x"}], "variants[0]", "is empty"),
        (["A100"], "variants[0]", "must be an object"),
        ([{"gpu_count": n} for n in range(1, 18)], "variants", "holds 17 alternatives, the limit is 16"),
        ([{"node_count": 2}], "variants[0].node_count", "is not a field of an alternative"),
        ([{"gpu_cuont": 2}], "variants[0].gpu_cuont", "did you mean 'gpu_count'?"),
        ([{"gpu_count": 1}, {"gpu_count": 1}], "variants[1]", "says the same as alternative 0"),
        ([{"gpu_count": 1}, {"gpu_count": 1, "name": "b"}], "variants[1]", "says the same as"),
        ([{"gpu_count": 1, "name": "a"}, {"cpu_milli": 1, "name": "a"}], "variants[1].name", "already"),
        ([{"gpu_count": 1, "gpu_backend": "cpu"}], "variants[0].gpu_backend", "is cpu, but gpu_count"),
        ([{"gpu_type": "A100", "gpu_backend": "cpu"}], "variants[0].gpu_backend", "is cpu, but gpu_type"),
        ([{"gpu_count": 1, "device": {"kind": "cpu"}}], "variants[0].device.kind", "is cpu, but gpu_count"),
        ([{"gpu_count": 2, "gpu_milli": 500}], "variants[0].gpu_milli", "goes with one card"),
        ([{"gpu_count": 1.5}], "variants[0].gpu_count", "must be whole cards, got 1.5"),
        ([{"device": {"kind": "npu"}}], "variants[0].device.kind", "must be one of cpu, gpu, tpu"),
        ([{"command": [""]}], "variants[0].command", "the program to run (item 0) is empty"),
        ([{"env": {"A=B": "1"}}], "variants[0].env", "has a name with '=' in it"),
    ],
)
def test_contradictions_are_refused(variants: Any, where: str, what: str) -> None:
    found = faults(variants)
    assert what in found[where]


def test_every_problem_comes_at_once() -> None:
    found = faults([{"gpu_count": -1}, {"vram": 1}, {"priority": 3}], retries=-1)
    assert list(found) == ["retries", "variants[0].gpu_count", "variants[1].vram", "variants[2].priority"]


def test_a_fault_of_the_job_itself_is_told_once() -> None:
    found = faults([{"gpu_count": 1}, {"gpu_count": 2}], overlap="fenced", lost_after_s=5)
    assert list(found) == ["lost_after_s"]
