"""Settings of text features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

from hinet.errors import HiNetError, did_you_mean
from hinet.parameters import FLAG, INVALID, NONE, Rule, Rules, one_of, real, validate_fields, whole

Sizes: TypeAlias = tuple[int, int]

MAX_NGRAM = 16
MAX_HASH_BITS = 26  # 256 MB of weights per kind of n-gram

# char_ngrams="auto" turns on character n-grams for a few texts, and for texts that are short on average. For many long
# texts there would be too many features, and training would take too long.
AUTO_CHAR_NGRAMS: Sizes = (3, 5)
FEW_TEXTS, FEW_WORDS = 50_000, 3_000_000  # maximum texts, and words in all of them, that count as few
SHORT_TEXT_WORDS = 8  # texts with fewer words on average are short
SAMPLE_TEXTS = 100_000  # number of first texts whose words are counted
# min_df="auto" keeps every n-gram of at most MAX_TEXTS_FOR_ALL texts, and else those in AUTO_MIN_DF texts.
MAX_TEXTS_FOR_ALL = 3_000
AUTO_MIN_DF = 2


def _read_sizes(value: Any) -> Any:
    if isinstance(value, tuple | list) and len(value) == 2:
        shortest, longest = (whole(1, MAX_NGRAM).read(size) for size in value)
        if INVALID not in (shortest, longest) and shortest <= longest:
            return shortest, longest
    return INVALID


_SIZES = Rule(f"the shortest and longest length, such as (1, 2), at most {MAX_NGRAM},", _read_sizes)
RULES: Rules = {
    "word_ngrams": _SIZES | NONE,
    "char_ngrams": _SIZES | one_of("auto") | NONE,
    "char_weight": real(above=0).with_remedy("for no character n-grams give char_ngrams=None"),
    "min_df": (whole(1) | one_of("auto")).with_remedy("1 keeps every feature"),
    "max_features": (whole(1) | NONE).with_remedy("None sets no limit"),
    "hash_bits": (whole(1, MAX_HASH_BITS) | NONE).with_remedy("None keeps a vocabulary; 20 is common"),
    "sublinear": FLAG,
    "keep_names": FLAG,
}


@dataclass(frozen=True)
class TextSettings:
    """Which n-grams of a text are features, and how they are weighted.

    Parameters
    ----------
    word_ngrams
        Shortest and longest word n-gram; ``None`` for none. A word consists of letters, digits and ``_``.
    char_ngrams
        Shortest and longest character n-gram within space-separated words, padded with a space on both sides; ``None``
        for none. ``"auto"`` is 3 to 5 for at most 50,000 texts of at most 3,000,000 words together, and if the first
        100,000 texts of a fit have fewer than 8 words on average; else none.
    char_weight
        Length of the character n-gram part of a row before the row is scaled to length 1; the words have length 1.
    min_df
        Minimum number of rows that contain a feature. ``"auto"`` is 1 for at most 3,000 texts, and for texts that share
        no n-gram; else 2.
    max_features
        Maximum number of features. Those in the most rows are kept; among equals, words before characters, then lower
        hashes.
    hash_bits
        Instead of a vocabulary, use ``2**hash_bits`` hashed features for words and as many for characters. They may
        collide and have no names, and those in fewer than ``min_df`` rows have weight 0.
    sublinear
        Use ``1 + log(count)`` of a feature in a row instead of ``count``.
    keep_names
        Keep the n-grams as text, to explain predictions.

    Examples
    --------
    >>> TextSettings(word_ngrams=(1, 3)).char_ngrams
    'auto'
    """

    word_ngrams: Sizes | None = (1, 2)
    char_ngrams: Sizes | Literal["auto"] | None = "auto"
    char_weight: float = 0.5
    min_df: int | Literal["auto"] = "auto"
    max_features: int | None = None
    hash_bits: int | None = None
    sublinear: bool = True
    keep_names: bool = True

    def __post_init__(self) -> None:
        validate_fields(self, RULES)
        if self.word_ngrams is None and self.char_ngrams is None:
            raise HiNetError("word_ngrams and char_ngrams are both None; without n-grams a text has no features")
        if self.hash_bits is not None and self.max_features is not None:
            raise HiNetError("max_features and hash_bits are both given; hash_bits alone sets the number of features")

    @property
    def has_names(self) -> bool:
        """Whether features get names: hashed ones have none."""
        return self.keep_names and self.hash_bits is None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dict for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TextSettings:
        """Return the settings from the result of :meth:`to_dict`."""
        names = [field.name for field in fields(cls)]
        for name in data:
            if name not in names:
                raise HiNetError(f"unknown text setting {name!r}{did_you_mean(name, names)}")
        return cls(**data)
