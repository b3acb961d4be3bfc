"""Start a runner: `python -P .../dray/runner/__main__.py`, told by the variable DRAY_RUNNER where its agent is.

Run by its path, in whichever environment the job names: what it needs of dray is loaded from where this file lies, and
nothing else of that place becomes visible to the user's code.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def load_package(name: str, folder: str) -> None:
    """Make the package in `folder` importable under its name."""
    spec = spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} holds no package {name}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def main() -> None:
    """Load dray from here, cloudpickle from the environment or else from beside dray, and go to work."""
    load_package("dray", HOME)
    given = os.environ.get("DRAY_CLOUDPICKLE", "")
    if find_spec("cloudpickle") is None and given:
        load_package("cloudpickle", given)
    os.environ.pop("DRAY_CLOUDPICKLE", None)
    # Neither the user's functions nor processes that they spawn should take this file for their program.
    sys.modules["__main__"] = ModuleType("__main__")
    from dray.runner.program import run

    run()


if __name__ == "__main__":
    main()
