"""Work that takes longer than a turn may: a process beside the hub does it, from a scene of the state."""
