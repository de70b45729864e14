"""``vectors="auto"``: whether texts are compared with the vectors of the extra ``meaning``."""

from __future__ import annotations

from typing import Any

from hinet.data.text.text_input import as_arrow
from hinet.encoders.packaged_vectors import is_installed, packaged_vectors
from hinet.encoders.token_vectors import TokenVectors
from hinet.errors import HiNetError, counted
from hinet.progress import Progress

MIN_TEXTS = 100  # fewer texts cannot show a gain
MIN_WORD_SHARE = 0.3  # minimum share of the words of texts that are tokens: the vectors are English
SAMPLE_TEXTS = 500
COMPARED_COLUMNS = 128  # columns that are compared with many rows; the vectors were trained so that the first say most


def default_vectors(texts: Any, progress: Progress, min_texts: int = MIN_TEXTS) -> TokenVectors | None:
    """Return the installed vectors if they suit training texts, else None; report which."""
    if not is_installed():
        return None
    if len(texts) < min_texts:
        progress.message(f"no static vectors: {counted(len(texts), 'text is/texts are')} too few to need them")
        return None
    try:
        vectors = packaged_vectors()
    except HiNetError as error:
        progress.message(f"no static vectors: {error}")
        return None
    share = vectors.word_share(_sample(texts))
    if share < MIN_WORD_SHARE:
        progress.message(f"no static vectors: these are for English, and know {share:.0%} of the words")
        return None
    progress.message(f"texts are also compared by static vectors of {vectors.package}")
    return vectors


def _sample(texts: Any) -> Any:
    """Return evenly spaced texts."""
    array = as_arrow(texts)
    step = max(1, len(array) // SAMPLE_TEXTS)
    return array.take(list(range(0, len(array), step))[:SAMPLE_TEXTS])
