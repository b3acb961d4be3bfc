"""Template files: what YAML makes of them, and where their problems are."""

from __future__ import annotations

import pytest

from dray.cli.asks.fields import JobFileError
from dray.cli.asks.template_file import load_template
from dray.core.model.templates.rendering import render
from dray.core.model.templates.template import check_template

GOOD = """\
name: train
params:
  word: {}
  limit: {type: duration, default: 90m}
spec:
  command: echo 'two words' ${word} $${word}
  time: 1:30
  env: {NO: no, ONE: 1}
  queue_timeout: ${limit}
"""


def test_a_template_is_written_as_a_job_file_is() -> None:
    document = load_template(GOOD, "t.yaml")
    assert document["spec"]["command"] == ["echo", "two words", "${word}", "$${word}"]
    assert document["spec"]["env"] == {"NO": "no", "ONE": "1"}
    spec, _ = render(check_template(document), {"word": 'a\'b "c": [d]'})
    assert spec["command"] == ["echo", "two words", 'a\'b "c": [d]', "${word}"]
    assert (spec["max_runtime_s"], spec["scheduling_timeout_s"]) == (90, 5400)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        (GOOD.replace("word: {}", "wrod: {}"), "t.yaml:6:3", "${word} is not a parameter of this template"),
        (GOOD.replace("time:", "tiem:"), "t.yaml:7:3", "did you mean 'time'?"),
        (GOOD.replace("type: duration", "type: span"), "t.yaml:4:11", "must be one of string, int"),
        (GOOD.replace("name: train", "name: a/b"), "t.yaml:1:1", "must be 1 to 64 letters"),
        ("name: t\nspec:\n  command: [echo, ${word}]\n", "t.yaml", "YAML wants ${name} in quotes"),
        ("", "t.yaml", "must be an object"),
        ("name: t\nname: u\n", "t.yaml:2:1", "is given twice"),
    ],
)
def test_problems_are_told_at_their_lines(text: str, where: str, said: str) -> None:
    with pytest.raises(JobFileError) as refused:
        load_template(text, "t.yaml")
    told = {problem.where: problem.what for problem in refused.value.problems}
    assert any(place == where and said in what for place, what in told.items()), told
