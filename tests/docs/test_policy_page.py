"""The example of the policy's reference page is a policy, and the page names every key there is."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dray.core.model.policies.policy import Policy
from dray.hub.decisions.policy import read_policy_text

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/policy.md").read_text(encoding="utf-8")


def test_the_example_is_a_policy() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    _, policy = read_policy_text(example, "the page")
    assert policy.queues["production"].weight == 3
    assert policy.quotas[1].gpu_hours is not None


def test_every_key_has_its_line() -> None:
    schemas = msgspec.json.schema_components([Policy])[1]
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    named |= {re.split(r"[.\[]", title)[0] for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
    keys = {key for schema in schemas.values() for key in schema["properties"]}
    assert keys <= named, keys - named
