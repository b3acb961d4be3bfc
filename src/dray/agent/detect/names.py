"""Turn a card's full product name into the short model that jobs ask for.

An ask matches the short model or a whole word of the full name, without case. So the short model is the model's words
written together without maker and form factor: `NVIDIA GeForce RTX 4090` becomes `RTX4090`, and jobs may ask for
`RTX4090` (the short model) as well as `4090` (a word of the full name); a bare `4090` would have lost the first.

The rule, in order:
1. Makers and trade marks go, and so does what stands in brackets. Families (GeForce, Tesla, Quadro, Radeon ...) go
   where another word remains: `Tesla T4` is `T4`, but `AMD Radeon Graphics` is `Radeon`.
2. Of a hyphenated word the first part stays: `A100-SXM4-80GB` is `A100`. Memory sizes, sockets and filler go.
3. What makes another chip stays: Ti, SUPER, Ada, Laptop, Max-Q. An ask for `RTX4090` must not end on a laptop's.
4. `RTX` and `GTX` go before a word that names the model alone: `RTX A6000` is `A6000`.
5. A MIG slice is the card's model and its profile: `A100-1g.5gb`. It must not pass for a whole `A100`.
"""

from __future__ import annotations

import re

from dray.core.model.capability import Device

_MAKERS = frozenset({"nvidia", "amd", "ati", "intel", "apple", "corporation", "arm", "qualcomm"})
_FAMILIES = frozenset({"geforce", "tesla", "quadro", "grid", "radeon", "instinct", "arc", "firepro"})
_FILLER = frozenset(
    "active blackwell cng design device edition fhhl generation gpu graphics lhr nvl pcie series server tm with"
    " workstation".split()
)
_MEMORY_OR_SOCKET = re.compile(r"\d+(\.\d+)?(g|[gmt]i?b)|hbm\d\w*|sxm\d*", re.IGNORECASE)
_NAMES_MODEL_ALONE = re.compile(r"[a-z]{1,2}\d{3,}\w*|titan", re.IGNORECASE)
FAKE_CARD = "FAKE-"
_MIG = re.compile(r"\s+MIG\s+(\S+)\s*$", re.IGNORECASE)


def shorten_model(full_name: str) -> str:
    """The short model of `full_name`; a name the rule cannot reduce is written together whole."""
    mig = _MIG.search(full_name)
    if mig:
        return f"{shorten_model(full_name[: mig.start()])}-{mig[1]}"
    words = re.sub(r"\([^)]*\)|[®™]", " ", full_name).split()
    words = [word for word in words if word.lower() not in _MAKERS]
    core = [word for word in map(_strip_form_factor, words) if word]
    core = [word for word in core if word.lower() not in _FAMILIES] or core
    return "".join(_drop_line_prefix(core)) or "".join(words) or full_name.strip()


def mask_name(device: Device) -> str:
    """How CUDA_VISIBLE_DEVICES names a device: by index in PCI order, except a MIG slice, which has only its uuid, and
    a fake card, whose name no driver knows: real ones must not be seen in its place.
    """
    return device.uuid if device.uuid.startswith(("MIG-", FAKE_CARD)) else str(device.index)


def _strip_form_factor(word: str) -> str:
    if word.lower() == "max-q":
        return "MaxQ"
    first, *rest = word.split("-")
    if first.lower() in _FILLER or _MEMORY_OR_SOCKET.fullmatch(first):
        return ""
    # Virtual cards write the generation into the hyphenated word: RTX6000-Ada-48Q.
    return first + "".join(part for part in rest if part.lower() == "ada")


def _drop_line_prefix(words: list[str]) -> list[str]:
    kept = []
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        if word.lower() not in ("rtx", "gtx") or not _NAMES_MODEL_ALONE.fullmatch(following):
            kept.append(word)
    return kept
