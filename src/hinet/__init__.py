"""Classify things into a large hierarchy: exact best traces, probabilities you can trust, fast on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.classifier import HiNetClassifier, TextVectorizer, load, paths_as_text
    from hinet.data import Traces, load_icd10cm
    from hinet.data.text import TextSettings
    from hinet.errors import FileError, HiNetError, LabelError, TaxonomyError
    from hinet.taxonomy import Layers, Taxonomy

__version__ = "0.1.0"

# Public names and the packages they are from; a package is imported when a name of it is first used.
_NAMES = {
    "hinet.classifier": ("HiNetClassifier", "TextVectorizer", "load", "paths_as_text"),
    "hinet.data": ("Traces", "load_icd10cm"),
    "hinet.data.text": ("TextSettings",),
    "hinet.errors": ("FileError", "HiNetError", "LabelError", "TaxonomyError"),
    "hinet.taxonomy": ("Layers", "Taxonomy"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "FileError",
    "HiNetClassifier",
    "HiNetError",
    "LabelError",
    "Layers",
    "Taxonomy",
    "TaxonomyError",
    "TextSettings",
    "TextVectorizer",
    "Traces",
    "load",
    "load_icd10cm",
    "paths_as_text",
]

if not TYPE_CHECKING:  # else a checker would take any name for one of these
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES, "__version__")
