"""What a template is: a document with parameters and the spec of a job in which `${name}` stands for them.

Owns what a sound one is; filling it in is `rendering`. `${name}` may be a whole value or stand inside one, never in a
key. The surprising rule: it may stand in no program's name, and in no text that a program is given to run (`sh -c`),
unless the template says `allow_program`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dray.core.model.specs.check import FIELDS, MAX_PROBLEMS
from dray.core.model.specs.values import has_more_than, plain_fault, quote, suggest, text_fault
from dray.core.model.templates.parameters import NAME, Parameter, parameter_problems
from dray.core.model.templates.spelling import READERS
from dray.errors import InvalidSpec, Problem

KINDS = {"job": "batch", "service": "service"}
TEMPLATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE = "1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
MAX_BYTES = 64 * 1024
MAX_VALUES, MAX_PARAMS = 2000, 64
MAX_HELP = 1000
# What is a job's own, and no template's.
_OWN = ("id", "user_id", "user", "after", "template", "params", "rendered", "function")
_PROGRAMS = ("command", "prolog", "epilog")
_RUNS_TEXT = re.compile(r"-[a-zA-Z]*c")
# `$${` is a `${` that stays; what follows a `${` up to the next brace is a name, or a mistake that is told.
PLACE = re.compile(r"\$\$\{|\$\{([^{}]*)(\}?)")
Place = tuple[str | int, ...]


class Template(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One template. `open`: fields that may be given beside it, whether or not it sets them."""

    name: str
    kind: str = "job"
    about: str = ""
    params: dict[str, Parameter] = {}
    spec: dict[str, Any] = {}
    open: list[str] = []
    allow_program: bool = False


_encode = msgspec.msgpack.Encoder().encode
_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode
_decoder = msgspec.msgpack.Decoder(Template)


def pack_template(template: Template) -> bytes:
    """Encode a template, its parameters in the order in which they were written."""
    return _encode(template)


def unpack_template(packed: bytes) -> Template:
    """Undo `pack_template`."""
    return _decoder.decode(packed)


def digest_of(template: Template) -> str:
    """The name of a template's content, in whatever order it was written."""
    return f"sha256:{hashlib.sha256(_encode_sorted(template)).hexdigest()}"


def find_placeholders(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every text of a document with the place where it stands; keys count as texts of their own place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from find_placeholders(item, (*place, number))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_placeholders(item, (*place, key))


def spell_place(place: Place) -> str:
    """`spec.command[2]`."""
    text = "spec"
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{str(step)[:64]}"
    return text


def check_template(raw: Any) -> Template:
    """The template of a document, or `InvalidSpec` with every problem."""
    _refuse(_outline_problems(raw))
    problems: list[Problem] = []
    params = {}
    for name, given in (raw.get("params") or {}).items():
        where = f"params.{str(name)[:64]}"
        if NAME.fullmatch(str(name)) is None:
            problems.append(Problem(where, "is no name: up to 64 letters, digits and '_', no digit first"))
            continue
        try:
            params[name] = msgspec.convert(given or {}, Parameter)
        except msgspec.ValidationError as error:
            problems.append(Problem(where, f"{error}: it has {', '.join(Parameter.__struct_fields__)}"))
            continue
        if unknown := next((key for key in given or {} if key not in Parameter.__struct_fields__), None):
            near = suggest(unknown, Parameter.__struct_fields__)
            problems.append(Problem(f"{where}.{str(unknown)[:64]}", f"is not a field of a parameter{near}"))
        problems += [Problem(f"{where}.{field}", fault) for field, fault in parameter_problems(params[name])]
    kind = raw.get("kind") or "job"
    template = Template(
        name=raw["name"],
        kind=kind,
        about=raw.get("about") or "",
        params=params,
        spec=raw["spec"],
        open=sorted(set(raw.get("open") or [])),
        allow_program=bool(raw.get("allow_program")),
    )
    _refuse([*problems, *_spec_problems(template), *_open_problems(template)])
    return template


def _refuse(problems: list[Problem]) -> None:
    if problems:
        first = f"{problems[0].where}: {problems[0].what}"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InvalidSpec(f"the template cannot be used: {first}{more}", problems[:MAX_PROBLEMS])


def name_problem(name: Any) -> str:
    """What is wrong with a template's name; empty where it is sound."""
    if isinstance(name, str) and TEMPLATE_NAME.fullmatch(name):
        return ""
    return f"must be {NAME_RULE}, got {quote(name)}"


_SHAPE: dict[str, tuple[type, str]] = {
    "name": (str, "text"),
    "kind": (str, "text"),
    "about": (str, "text"),
    "params": (dict, "a mapping of names to parameters"),
    "spec": (dict, "the fields of a job"),
    "open": (list, "a list of fields of a job"),
    "allow_program": (bool, "true or false"),
}


def _outline_problems(raw: Any) -> list[Problem]:
    """What keeps a document from being looked at closer."""
    if not isinstance(raw, dict):
        return [Problem("template", f"must be an object with {', '.join(_SHAPE)}, got {quote(raw)}")]
    if has_more_than(raw, MAX_VALUES):
        return [Problem("template", f"holds more than {MAX_VALUES} values, the limit")]
    if fault := plain_fault(raw):
        return [Problem("template", fault)]
    if (size := len(msgspec.msgpack.encode(raw))) > MAX_BYTES:
        return [Problem("template", f"takes {size} bytes, the limit is {MAX_BYTES}")]
    problems = [
        Problem(str(key)[:64], f"is not a field of a template{suggest(key, list(_SHAPE))}")
        for key in raw
        if key not in _SHAPE
    ]
    problems += [
        Problem(key, f"must be {words}, got {quote(raw[key])}")
        for key, (kind, words) in _SHAPE.items()
        if raw.get(key) is not None and not isinstance(raw[key], kind)
    ]
    if problems:
        return problems
    if fault := name_problem(raw.get("name")):
        problems.append(Problem("name", fault))
    if (raw.get("kind") or "job") not in KINDS:
        problems.append(Problem("kind", f"must be one of {', '.join(KINDS)}, got {quote(raw['kind'])}"))
    if not raw.get("spec"):
        problems.append(Problem("spec", "is missing: the fields of the job, as in a job file"))
    if len(raw.get("about") or "") > MAX_HELP or text_fault(raw.get("about") or ""):
        problems.append(Problem("about", f"must be at most {MAX_HELP} characters of text"))
    if len(raw.get("params") or {}) > MAX_PARAMS:
        problems.append(
            Problem("params", f"holds {len(raw['params'])} parameters, the limit is {MAX_PARAMS}")
        )
    wrong = next(
        (
            key
            for key, value in (raw.get("params") or {}).items()
            if not isinstance(value, (dict, type(None)))
        ),
        None,
    )
    if wrong is not None:
        what = f"must be an object with {', '.join(Parameter.__struct_fields__)}"
        problems.append(Problem(f"params.{str(wrong)[:64]}", what))
    return problems


def _open_problems(template: Template) -> list[Problem]:
    known = [*FIELDS, *READERS]
    return [
        Problem("open", f"{quote(name)} is not a field of a job{suggest(name, known)}")
        for name in template.open
        if name not in known or name in _OWN
    ]


def _spec_problems(template: Template) -> list[Problem]:
    known = [*FIELDS, *READERS]
    problems = [
        Problem(f"spec.{str(key)[:64]}", f"is not a field of a job{suggest(key, known)}")
        for key in template.spec
        if key not in known
    ]
    problems += [
        Problem(f"spec.{key}", "belongs to each job and is given beside the template")
        for key in _OWN
        if key in template.spec
    ]
    if template.spec.get("type") not in (None, KINDS[template.kind]):
        problems.append(Problem("spec.type", f"says otherwise than the kind {template.kind}: leave it out"))
    for where in _keys_with_places(template.spec):
        problems.append(Problem(where, "${…} stands in a key: only values may hold parameters"))
    used: set[str] = set()
    for place, text in find_placeholders(template.spec):
        problems += _text_problems(template, place, text, used)
    problems += [
        Problem(f"params.{name}", f"is used nowhere: ${{{name}}} must stand in a value of the spec")
        for name in template.params
        if name not in used
    ]
    return problems


def _keys_with_places(value: Any, place: Place = ()) -> Iterator[str]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _keys_with_places(item, (*place, number))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if "${" in key:
                yield spell_place(place)
            yield from _keys_with_places(item, (*place, key))


def _text_problems(template: Template, place: Place, text: str, used: set[str]) -> list[Problem]:
    problems = []
    for match in PLACE.finditer(text):
        name, closed = match.group(1), match.group(2)
        if name is None:
            continue
        where = spell_place(place)
        if not closed or NAME.fullmatch(name) is None:
            what = (
                f"{quote(text)} holds a ${{ that is no parameter: write ${{name}}, or $${{ for the characters"
            )
            problems.append(Problem(where, what))
        elif name not in template.params:
            near = suggest(name, list(template.params))
            problems.append(Problem(where, f"${{{name}}} is not a parameter of this template{near}"))
        else:
            used.add(name)
            if not template.allow_program and _chooses_program(template.spec, place):
                what = (
                    f"${{{name}}} would choose what is run: pass it as a further argument or in env, or say "
                    "allow_program: true"
                )
                problems.append(Problem(where, what))
    return problems


def _chooses_program(spec: Mapping[str, Any], place: Place) -> bool:
    """Whether a text names a program, or is one: the first word, and what follows `-c` as in `sh -c TEXT`."""
    if place[:1] == ("variants",):
        variants, number = spec["variants"], place[1] if len(place) > 2 else ""
        inner = variants[number] if isinstance(variants, list) and isinstance(number, int) else {}
        return _chooses_program(inner, place[2:]) if isinstance(inner, Mapping) else False
    if not place or place[0] not in _PROGRAMS:
        return False
    words = spec[place[0]]
    index = place[1] if len(place) == 2 else 0
    if not isinstance(words, list) or not isinstance(index, int) or index == 0:
        return True
    before = words[index - 1]
    return isinstance(before, str) and _RUNS_TEXT.fullmatch(before) is not None
