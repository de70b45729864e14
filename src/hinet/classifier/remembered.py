"""The texts of the entries that neighbours compare a text with, for explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from hinet.engine.model.experts import Memory
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import ArraySpec, Schema, check_arrays, offsets
from hinet.ragged import offsets_of

Origin: TypeAlias = Literal["row", "title", "correction"]
ORIGINS: tuple[Origin, ...] = get_args(Origin)
TEXTS = "remembered"  # prefix of the arrays in a file
MAX_CHARACTERS = 300  # longer texts are cut
_SCHEMA: Schema = {
    f"{TEXTS}.number": ArraySpec(("texts",), "iu", 0, rising=True),
    f"{TEXTS}.origin": ArraySpec(("texts",), "iu", 0, len(ORIGINS) - 1),
    f"{TEXTS}.offsets": offsets("texts", "bytes"),
    f"{TEXTS}.text": ArraySpec(("bytes",), "u", bits=8),
}


class Neighbour(NamedTuple):
    """A known text that a text is compared with."""

    text: str | None  # None if the model does not keep texts
    label: Any
    node: int  # position of the label in the taxonomy
    similarity: float  # cosine of the vectors of both texts
    origin: Origin
    row: int | None  # number of the training row

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return {**self._asdict(), "label": str(self.label)}

    def __str__(self) -> str:
        place = f"row {self.row:,}" if self.origin == "row" and self.row is not None else self.origin
        return place if self.text is None else f"'{self.text}' ({place})"


@dataclass(frozen=True, eq=False)
class RememberedTexts:
    """Texts by the number that an entry of the memory has."""

    number: NDArray[np.int64]  # (n,) ascending
    origin: NDArray[np.uint8]  # (n,) index into ORIGINS
    texts: tuple[str, ...]

    @classmethod
    def of(cls, memory: Memory, rows: Sequence[str], titles: Sequence[str], title_rows: int = 0) -> RememberedTexts:
        """Return the texts of a new memory, whose numbers are those of training rows, followed by those of titles.

        The last ``title_rows`` training rows are titles, too.
        """
        number = np.unique(memory.row).astype(np.int64)
        origin = (number >= len(rows) - title_rows).astype(np.uint8)
        texts = (rows[each] if each < len(rows) else titles[each - len(rows)] for each in number.tolist())
        return cls(number, origin, tuple(text[:MAX_CHARACTERS] for text in texts))

    def with_corrections(self, memory: Memory, first: int, texts: Sequence[str]) -> RememberedTexts:
        """Return the texts of a memory to which those of corrections were added, numbered from ``first``."""
        number = np.append(self.number, first + np.arange(len(texts)))
        origin = np.append(self.origin, np.full(len(texts), ORIGINS.index("correction"), np.uint8))
        all_texts = [*self.texts, *(text[:MAX_CHARACTERS] for text in texts)]
        kept = np.flatnonzero(np.isin(number, memory.row))
        return RememberedTexts(number[kept], origin[kept], tuple(all_texts[each] for each in kept.tolist()))

    def find(self, number: int) -> tuple[str, Origin] | None:
        """Return the text with a number and where it comes from, if it is known."""
        position = int(np.searchsorted(self.number, number))
        if position == len(self.number) or self.number[position] != number:
            return None
        return self.texts[position], ORIGINS[self.origin[position]]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        encoded = [text.encode(errors="replace") for text in self.texts]
        arrays: dict[str, NDArray[Any]] = {
            "number": self.number,
            "origin": self.origin,
            "offsets": offsets_of(np.array([len(text) for text in encoded], np.int64)),
            "text": np.frombuffer(b"".join(encoded), np.uint8),
        }
        return {f"{TEXTS}.{name}": narrowest(array) for name, array in arrays.items()}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> RememberedTexts | None:
        """Return the texts of saved arrays, if there are any; raise HiNetError if they are invalid."""
        if not arrays:
            return None
        check_arrays(arrays, _SCHEMA, {})
        number, origin, bounds, data = (arrays[name] for name in _SCHEMA)
        whole, ends = data.tobytes(), bounds.tolist()
        try:
            texts = tuple(whole[start:end].decode() for start, end in pairwise(ends))
        except UnicodeDecodeError as error:
            raise HiNetError(f"the array '{TEXTS}.text' is not UTF-8: {error}") from None
        return cls(number.astype(np.int64), origin.astype(np.uint8), texts)
