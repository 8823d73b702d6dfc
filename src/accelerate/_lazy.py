"""Names that are imported when they are first used (PEP 562), so that importing a package costs next to nothing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, Iterable[str]], submodules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for `package`.

    Args:
        package: the package's `__name__`.
        names: for each module (absolute) the names that the package shows from it.
        submodules: modules of the package that are attributes of it without having been imported.
    """
    homes = {name: module for module, exported in names.items() for name in exported}
    known = frozenset(submodules)

    def __getattr__(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
        elif name in known:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *known})

    return __getattr__, __dir__, sorted(homes)


def lazy_module(name: str) -> Any:
    """Return the module called `name`, whose code runs when something of it is first used.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
