"""Find cards through the Vulkan loader, and decide which of them count as cards.

Owns the talk with libvulkan. Run as a program it prints what it saw as JSON, which is how the agent calls it: loading
a driver may crash or hang. The surprising rules: VRAM is the largest device-local heap, not the sum, because drivers
show a window into the same memory as a second heap; a software device (a CPU that plays a card) counts as none unless
allowed; integrated cards count only where no other card is, so that no job lands on the small one beside the big one.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import msgspec

from dray.agent.detect import vulkan_api as vk
from dray.agent.detect.cards import Card, Cards
from dray.agent.detect.child import probe_in_child

_TIMEOUT_S = 20.0
_LIBRARIES = {"darwin": ("libvulkan.1.dylib", "libMoltenVK.dylib")}
_DEFAULT_LIBRARIES = ("libvulkan.so.1",)
_UNSET = 0xFFFFFFFF


def probe_vulkan(allow_software: bool) -> Cards:
    """Look in a child process; without a loader library there is no child."""
    if load_library() is None:
        return Cards(notes=["vulkan: no loader library here"])
    return choose_cards(probe_in_child("dray.agent.detect.vulkan", "vulkan", _TIMEOUT_S), allow_software)


def load_library() -> ctypes.CDLL | None:
    """The loader alone; it opens drivers only when an instance is made."""
    for name in _LIBRARIES.get(sys.platform, _DEFAULT_LIBRARIES):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def read_cards(library: ctypes.CDLL) -> Cards:
    """Every physical device the loader shows, software ones too, in the loader's order."""
    library.vkGetInstanceProcAddr.restype = ctypes.c_void_p
    library.vkGetInstanceProcAddr.argtypes = (vk.Handle, ctypes.c_char_p)
    instance, status = _create_instance(library)
    if instance is None:
        return Cards(notes=[f"vulkan: no driver could be opened (vkCreateInstance answered {status})"])
    try:
        devices = _list_devices(library, instance)
        return Cards(
            cards=[_read_card(library, instance, index, device) for index, device in enumerate(devices)]
        )
    finally:
        library.vkDestroyInstance(instance, None)


def _create_instance(library: ctypes.CDLL) -> tuple[vk.Handle | None, int]:
    application = vk.ApplicationInfo(application_name=b"dray", api_version=_choose_api_version(library))
    info = vk.InstanceCreateInfo(
        s_type=vk.STYPE_INSTANCE_CREATE_INFO, application_info=ctypes.pointer(application)
    )
    instance = vk.Handle()
    status = int(library.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)))
    return (instance if status == vk.SUCCESS else None), status


def _choose_api_version(library: ctypes.CDLL) -> int:
    """A loader of version 1.0 refuses an instance that asks for more, and is the one without this function."""
    return vk.API_1_2 if library.vkGetInstanceProcAddr(None, b"vkEnumerateInstanceVersion") else 0


def _list_devices(library: ctypes.CDLL, instance: vk.Handle) -> list[vk.Handle]:
    count = ctypes.c_uint32()
    library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    handles = (vk.Handle * count.value)()
    status = library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
    if status not in (vk.SUCCESS, vk.INCOMPLETE):
        return []
    return [vk.Handle(handle) for handle in handles[: count.value]]


def _read_card(library: ctypes.CDLL, instance: vk.Handle, index: int, device: vk.Handle) -> Card:
    properties = vk.DeviceProperties()
    library.vkGetPhysicalDeviceProperties(device, ctypes.byref(properties))
    memory = vk.MemoryProperties()
    library.vkGetPhysicalDeviceMemoryProperties(device, ctypes.byref(memory))
    heaps = memory.heaps[: memory.heap_count]
    uuid, bus, driver = _read_identity(library, instance, device, int(properties.api_version))
    return Card(
        index=index,
        name=properties.device_name.decode(errors="replace"),
        uuid=uuid,
        vram_bytes=max((int(heap.size) for heap in heaps if heap.flags & vk.HEAP_DEVICE_LOCAL), default=0),
        driver=driver,
        kind=vk.DEVICE_TYPES.get(int(properties.device_type), "other"),
        bus=bus,
    )


def _read_identity(
    library: ctypes.CDLL, instance: vk.Handle, device: vk.Handle, api_version: int
) -> tuple[str, str, str]:
    """Uuid, PCI address and driver, each empty where the device is too old to tell."""
    address = library.vkGetInstanceProcAddr(instance, b"vkGetPhysicalDeviceProperties2")
    if not address or api_version < vk.API_1_1:
        return "", "", ""
    # A driver steps over a record it does not know, which then keeps what was put in here.
    pci = vk.PciBusInfo(s_type=vk.STYPE_PCI_BUS_INFO, domain=_UNSET)
    driver = vk.DriverProperties(s_type=vk.STYPE_DRIVER_PROPERTIES, next=ctypes.addressof(pci))
    identity = vk.IdProperties(s_type=vk.STYPE_ID_PROPERTIES, next=ctypes.addressof(driver))
    properties = vk.DeviceProperties2(s_type=vk.STYPE_PROPERTIES_2, next=ctypes.addressof(identity))
    ask: Any = ctypes.CFUNCTYPE(None, vk.Handle, ctypes.c_void_p)(address)
    ask(device, ctypes.addressof(properties))
    digits = bytes(identity.device_uuid).hex()
    bus = "" if pci.domain == _UNSET else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}"
    words = (driver.driver_name.decode(errors="replace"), driver.driver_info.decode(errors="replace"))
    return _group_uuid(digits) if digits.strip("0") else "", bus, " ".join(filter(None, words))


def _group_uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def choose_cards(seen: Cards, allow_software: bool) -> Cards:
    """Leave out what is no card of its own: software devices, second drivers, integrated cards beside others."""
    notes = list(seen.notes)
    kept: list[Card] = []
    for card in seen.cards:
        twin = next((other for other in kept if card.bus and other.bus == card.bus), None)
        if card.kind == "software" and not allow_software:
            notes.append(f"vulkan: {card.name} is a software device and not offered")
        elif twin is not None:
            notes.append(f"vulkan: {card.name} is {twin.name} again, by another driver, and counts once")
        else:
            kept.append(card)
    if any(card.kind in ("discrete", "virtual") for card in kept):
        small = [card for card in kept if card.kind in ("integrated", "software")]
        notes += [
            f"vulkan: {card.name} ({card.kind}) stands beside a real card, not offered" for card in small
        ]
        kept = [card for card in kept if card not in small]
    found = ", ".join(f"{card.name} ({card.kind})" for card in kept)
    notes.append(f"vulkan: {found}" if kept else "vulkan: no card to offer")
    return Cards(cards=kept, notes=notes)


if __name__ == "__main__":
    loader = load_library()
    seen_here = read_cards(loader) if loader else Cards(notes=["vulkan: no loader library here"])
    sys.stdout.write(msgspec.json.encode(seen_here).decode() + "\n")
