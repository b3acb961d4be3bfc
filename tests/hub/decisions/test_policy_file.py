"""The policy as a YAML file: whole, or every fault at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.core.model.policies.policy import Queue
from dray.hub.decisions.policy import MAX_FILE_BYTES, PolicyFileError, find_policy_file, read_policy_file

GOOD = """\
# what a site may write
queues:
  default:
  gold: {order: priority, weight: 3, ageing_s: 30m}
quotas:
  - user: "*"
    gpus: 8
"""


def faults(path: Path, text: str | bytes) -> list[tuple[str, str]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(PolicyFileError) as caught:
        read_policy_file(path)
    return [(where.removeprefix(f"{path}:"), what) for where, what in caught.value.problems]


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    assert find_policy_file(tmp_path) is None
    path.write_text(GOOD)
    found = find_policy_file(tmp_path)
    assert found is not None
    assert found.policy.queues == {
        "default": Queue(),
        "gold": Queue(order="priority", weight=3, ageing_s=1800),
    }
    assert found.document["quotas"] == [{"user": "*", "gpus": 8}]
    path.write_text(GOOD + "\n")
    changed = find_policy_file(tmp_path)
    assert changed is not None
    assert changed.policy == found.policy
    assert changed.digest != found.digest


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("# nothing yet\n")
    found = find_policy_file(tmp_path)
    assert found is not None
    assert found.document == {}


def test_every_fault_at_its_line(tmp_path: Path) -> None:
    text = """\
queus: {}
queues:
  gold:
    wieght: 2
    order: fiffo
  gold: {}
quotas:
  - gpus: 4
  - user: ana
    gpu_hours:
      soft: 5
      hard: 4
  - {user: ben, gpus: !!python/none x}
pacing:
  running:
    - label: a
"""
    found = faults(tmp_path / "policy.yaml", text)
    assert [where for where, _ in found] == ["1:1", "6:3", "8:5", "11:7", "13:5", "13:23", "16:7"]
    assert "did you mean 'queues'?" in found[0][1]
    assert "given twice, first in line 3" in found[1][1]
    assert "soft: must not be above hard" in found[3][1]


def test_faults_inside_an_entry_have_their_own_lines(tmp_path: Path) -> None:
    found = faults(
        tmp_path / "p.yaml", "queues:\n  gold:\n    wieght: 2\n    order: fiffo\n    ageing_s: soon\n"
    )
    assert [where for where, _ in found] == ["3:5", "4:5", "5:5"]
    assert found[0][1].startswith("queues.gold.wieght: is no key of a queue; did you mean 'weight'?")


def test_names_are_as_written(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("queues:\n  no:\n  on: {weight: 2}\n  1234:\n")
    assert list(read_policy_file(path).policy.queues) == ["no", "on", "1234"]


def test_anchors_may_be_used_and_overridden(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "queues:\n  a: &base {order: sjf, weight: 2}\n  b:\n    <<: *base\n    weight: 5\n  c: *base\n"
    )
    queues = read_policy_file(path).policy.queues
    assert queues["b"] == Queue(order="sjf", weight=5)
    assert queues["c"] == queues["a"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("queues: [", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("- fifo", "must be keys and values"),
        ("just words", "must be keys and values"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("queues: {a: &x [*x]}", "more than a policy holds"),
        ("? [a]\n: b\n", "a name must be plain text"),
        ("\x00", "not valid YAML"),
        ("queues: {a: {weight: .nan}}", "finite"),
        ("queues: {a: {weight: 0x}}", "must be a number"),
        ("fair_share: {half_life_s: 2026-01-01}", "span of time"),
        ("x: " + "[" * 5000, "nested too deeply"),
    ],
)
def test_nonsense_is_told(tmp_path: Path, text: str, what: str) -> None:
    found = faults(tmp_path / "p.yaml", text)
    assert any(what in line for _, line in found), found


def test_many_aliases_are_not_unfolded_for_ever(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    found = faults(tmp_path / "p.yaml", "\n".join(lines))
    assert "more than a policy holds" in found[-1][1]


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    for content, what in ((b"\xff\xfe", "not UTF-8"), (b" " * (MAX_FILE_BYTES + 1), "larger than")):
        path.write_bytes(content)
        with pytest.raises(PolicyFileError, match=what):
            read_policy_file(path)
    with pytest.raises(PolicyFileError, match="cannot be read"):
        read_policy_file(tmp_path)
