"""The core run in virtual time: fault simulation now, trace replay on the same clock."""
