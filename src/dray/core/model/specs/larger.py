"""The ask for a larger card, of a job that ran out of GPU memory: how much larger, its spec and its words.

Surprising rule: a card is larger only by a sixteenth and more. Two of one make differ by some megabytes from driver to
driver, and what did not fit into one does not fit into the other.
"""

from __future__ import annotations

import msgspec

from dray.core.model.specs.resources import asks_of_packed
from dray.core.model.specs.spec import BIGGER, JobSpec, Variant, pack_spec, unpack_spec, with_variant
from dray.core.model.units import format_vram


def least_beyond(vram_bytes: int) -> int:
    """The memory of the smallest card that counts as larger."""
    return vram_bytes + max(1, vram_bytes // 16)


def learns(spec: JobSpec) -> bool:
    """Whether a job asks for a larger card after its memory was too small."""
    return spec.rules.oom == BIGGER


def asks_beyond(packed: bytes, vram_bytes: int) -> bool:
    """Whether every alternative of a job that takes cards asks for larger ones than these already."""
    least = least_beyond(vram_bytes)
    return all(ask.vram_each_bytes >= least for ask in asks_of_packed(packed) if ask.gpus)


def ask_beyond(packed: bytes, vram_bytes: int) -> bytes:
    """The spec of a job that asks for larger cards than these, in each alternative that takes any."""
    spec, least = unpack_spec(packed), least_beyond(vram_bytes)
    variants = [_raised(spec, number, least) for number in range(len(spec.variants))]
    own = max(spec.vram_per_gpu_bytes, least) if spec.gpu_count else spec.vram_per_gpu_bytes
    return pack_spec(msgspec.structs.replace(spec, variants=variants, vram_per_gpu_bytes=own))


def _raised(spec: JobSpec, number: int, least: int) -> Variant:
    laid, variant = with_variant(spec, number), spec.variants[number]
    if not laid.gpu_count:
        return variant
    return msgspec.structs.replace(variant, vram_per_gpu_bytes=max(laid.vram_per_gpu_bytes, least))


def tell_outgrown(vram_bytes: int, found_by: str, own: str = "") -> str:
    """Why a job asks for more than its submit said; empty where it does not."""
    if not vram_bytes:
        return ""
    who = "it" if found_by == own else f"job {found_by}"
    return f"asks for cards of more than {format_vram(vram_bytes)} because {who} ran out of GPU memory there"
