"""Classify things into a large hierarchy: exact best traces, probabilities you can trust, fast on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hinet.classifier import HiNetClassifier as HiNetClassifier
    from hinet.classifier import TextVectorizer as TextVectorizer
    from hinet.classifier import load as load
    from hinet.classifier import paths_as_text as paths_as_text
    from hinet.data import Traces as Traces
    from hinet.data import load_icd10cm as load_icd10cm
    from hinet.data.text import TextSettings as TextSettings
    from hinet.errors import FileError as FileError
    from hinet.errors import HiNetError as HiNetError
    from hinet.errors import LabelError as LabelError
    from hinet.errors import TaxonomyError as TaxonomyError
    from hinet.taxonomy import Layers as Layers
    from hinet.taxonomy import Taxonomy as Taxonomy
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "classifier": "HiNetClassifier TextVectorizer load paths_as_text",
            "data": "Traces load_icd10cm",
            "data.text": "TextSettings",
            "errors": "FileError HiNetError LabelError TaxonomyError",
            "taxonomy": "Layers Taxonomy",
        },
        "__version__",
    )
