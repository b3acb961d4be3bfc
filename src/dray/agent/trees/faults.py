"""Why an attempt cannot begin in what it asks for."""


class TreeFault(Exception):
    """Why there is no tree, or no environment. `ours`: this machine is at fault, and another may do better."""

    def __init__(self, message: str, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours


class BuildFault(Exception):
    """What a program that was to build or to fetch something says against it."""
