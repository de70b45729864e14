"""Public names of a package that are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names: Mapping[str, str], *own: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    ``names`` maps each module of the package to its public names, separated by spaces, so that importing one module
    does not import the others. ``own`` are names that the package itself defines. For type checkers the package
    imports the same names under ``TYPE_CHECKING``, each with ``as``, which marks it as exported.
    """
    homes = {name: f"{package}.{module}" for module, public in names.items() for name in public.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return load, lambda: sorted([*homes, *own]), sorted(homes)
