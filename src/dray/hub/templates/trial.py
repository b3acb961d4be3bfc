"""A template tried out when it is added: what can be filled in without asking anybody must make a job."""

from __future__ import annotations

from typing import Any

from dray.core.model.specs.check import check_spec
from dray.core.model.templates.parameters import Parameter
from dray.core.model.templates.rendering import render
from dray.core.model.templates.template import Template
from dray.errors import InvalidInput, InvalidSpec, Problem

_SAMPLES: dict[str, Any] = {
    "string": "x", "int": 1, "float": 1.0, "bool": True, "size": "1g", "duration": "1m"
}  # fmt: skip


def check_by_trial(template: Template) -> None:
    """Render and check it; one whose parameters nobody can guess is left to its first use."""
    params = {name: _sample(parameter) for name, parameter in template.params.items()}
    try:
        spec, _ = render(template, params)
    except InvalidInput:
        return
    try:
        check_spec(spec)
    except InvalidSpec as fault:
        problems = [Problem(f"spec.{problem.where}", problem.what) for problem in fault.problems]
        first = f"{problems[0].where}: {problems[0].what}"
        raise InvalidSpec(f"the template makes no job: {first}", problems) from None


def _sample(parameter: Parameter) -> Any:
    if parameter.default is not None:
        return parameter.default
    if parameter.choices:
        return parameter.choices[0]
    if parameter.type != "string" and parameter.min is not None:
        return parameter.min
    return _SAMPLES[parameter.type]
