"""The few pieces of the Vulkan C interface that a look at physical devices needs, as ctypes records.

Owns layouts and numbers, nothing else. The surprising rule: device limits are hundreds of fields nobody here reads, so
they are one block of spare bytes, larger than any version of the record.
"""

from __future__ import annotations

import ctypes

API_1_1 = (1 << 22) | (1 << 12)
API_1_2 = (1 << 22) | (2 << 12)
SUCCESS = 0
INCOMPLETE = 5
HEAP_DEVICE_LOCAL = 1

DEVICE_TYPES = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}

STYPE_INSTANCE_CREATE_INFO = 1
STYPE_PROPERTIES_2 = 1000059001
STYPE_ID_PROPERTIES = 1000071004
STYPE_DRIVER_PROPERTIES = 1000196000
STYPE_PCI_BUS_INFO = 1000212000

Handle = ctypes.c_void_p


class ApplicationInfo(ctypes.Structure):
    _fields_ = (
        ("s_type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("application_name", ctypes.c_char_p),
        ("application_version", ctypes.c_uint32),
        ("engine_name", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    )


class InstanceCreateInfo(ctypes.Structure):
    _fields_ = (
        ("s_type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application_info", ctypes.POINTER(ApplicationInfo)),
        ("layer_count", ctypes.c_uint32),
        ("layer_names", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extension_names", ctypes.c_void_p),
    )


class DeviceProperties(ctypes.Structure):
    _fields_ = (
        ("api_version", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("vendor_id", ctypes.c_uint32),
        ("device_id", ctypes.c_uint32),
        ("device_type", ctypes.c_uint32),
        ("device_name", ctypes.c_char * 256),
        ("pipeline_cache_uuid", ctypes.c_uint8 * 16),
        ("limits_and_sparse", ctypes.c_uint64 * 256),
    )


class DeviceProperties2(ctypes.Structure):
    _fields_ = (("s_type", ctypes.c_uint32), ("next", ctypes.c_void_p), ("properties", DeviceProperties))


class IdProperties(ctypes.Structure):
    _fields_ = (
        ("s_type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("device_uuid", ctypes.c_uint8 * 16),
        ("driver_uuid", ctypes.c_uint8 * 16),
        ("device_luid", ctypes.c_uint8 * 8),
        ("device_node_mask", ctypes.c_uint32),
        ("device_luid_valid", ctypes.c_uint32),
    )


class DriverProperties(ctypes.Structure):
    _fields_ = (
        ("s_type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("driver_id", ctypes.c_uint32),
        ("driver_name", ctypes.c_char * 256),
        ("driver_info", ctypes.c_char * 256),
        ("conformance", ctypes.c_uint8 * 4),
    )


class PciBusInfo(ctypes.Structure):
    _fields_ = (
        ("s_type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("domain", ctypes.c_uint32),
        ("bus", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("function", ctypes.c_uint32),
    )


class MemoryType(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint32), ("heap_index", ctypes.c_uint32))


class MemoryHeap(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint64), ("flags", ctypes.c_uint32))


class MemoryProperties(ctypes.Structure):
    _fields_ = (
        ("type_count", ctypes.c_uint32),
        ("types", MemoryType * 32),
        ("heap_count", ctypes.c_uint32),
        ("heaps", MemoryHeap * 16),
    )
