"""Static vectors of tokens, in 8 bits, found by hash."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.text.fitting import parallel_map
from hinet.data.text.text_input import as_arrow, in_blocks, normalise
from hinet.data.text.vocabulary import vocabulary_lookup
from hinet.data.vectors.token_kernels import TokenTable, token_hashes, token_sums
from hinet.errors import HiNetError
from hinet.files.schema import ArraySpec, Schema, bytes_of, check_arrays, floats
from hinet.parameters import resolve_threads
from hinet.quantised import quantise_rows

MAX_WIDTH = 4_096
MAX_SCALE = 1e6  # of a forged vector, so that sums stay finite
_WORD = re.compile(r"\w+")
_SCHEMA: Schema = {
    "hashes": ArraySpec(("tokens",), "u", rising=True),
    "vectors": bytes_of("tokens", "width"),
    "scale": floats("tokens", low=0, high=MAX_SCALE),
    "pairs": ArraySpec((1,), "iu", 0, 1),
}


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """A vector for each token of a vocabulary: words, pairs of words, and pieces of words.

    Texts are read as :class:`hinet.data.text.TextFeatures` reads them: normalised (NFKC), in lower case, words of
    letters, digits and ``_``. The vector of a text is the sum over its tokens; weights of tokens are part of their
    vectors. Only the hashes of tokens are kept, eight bytes each.
    """

    table: TokenTable

    @classmethod
    def of(cls, tokens: Sequence[str], vectors: NDArray[Any], within: NDArray[np.bool_] | None = None) -> TokenVectors:
        """Return the vectors of tokens; those ``within`` words continue one.

        Tokens that are neither a word, two words, nor a piece of a word are left out, as are all but the first of the
        same hash.

        >>> vectors = TokenVectors.of(["rye", "bread"], np.eye(2, dtype=np.float32))
        >>> vectors.sums(["Rye bread, more bread"]).round(3).tolist()
        [[1.0, 2.0]]
        """
        if len(tokens) != len(vectors):
            raise HiNetError(f"{len(tokens):,} tokens and {len(vectors):,} vectors; give as many of both")
        within = np.zeros(len(tokens), bool) if within is None else within
        parts = [normalise(block) for block in in_blocks(as_arrow(list(tokens)), 1)]
        starts = np.cumsum([0, *(len(part.offsets) - 1 for part in parts)])
        hashed = [
            token_hashes(part.text, part.offsets, part.classes, within[start : start + len(part.offsets) - 1])
            for part, start in zip(parts, starts[:-1], strict=True)
        ]
        hashes = np.concatenate([np.zeros(0, np.uint64), *(part for part, _ in hashed)])
        counts = np.concatenate([np.zeros(0, np.int64), *(part for _, part in hashed)])
        usable = np.flatnonzero(hashes)
        rising, first = np.unique(hashes[usable], return_index=True)
        chosen = usable[first]
        if not len(chosen):
            raise HiNetError("none of the tokens is a word or a piece of one; there is nothing to find in texts")
        levels, scale = quantise_rows(np.ascontiguousarray(vectors[chosen], np.float32))
        return cls._of(rising, levels, scale, bool((counts[chosen] == 2).any()))

    @classmethod
    def _of(
        cls, hashes: NDArray[np.uint64], vectors: NDArray[np.int8], scale: NDArray[np.float32], pairs: bool
    ) -> TokenVectors:
        lookup = vocabulary_lookup(hashes, np.ones(len(hashes), np.float32))
        return cls(TokenTable(lookup.hashes, lookup.runs, lookup.shift, vectors, scale, pairs))

    def __len__(self) -> int:
        return len(self.table.hashes)

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.table.vectors.shape[1])

    def sums(self, texts: Any, threads: int | None = None) -> NDArray[np.float32]:
        """Return the sum of the vectors of the tokens of each text, (n, width); zeros where there is none."""
        threads = resolve_threads(threads)

        def work(block: Any) -> NDArray[np.float32]:
            part = normalise(block)
            sums: NDArray[np.float32] = token_sums(part.text, part.offsets, part.classes, self.table)
            return sums

        parts = parallel_map(work, in_blocks(as_arrow(texts), threads), threads)
        return np.concatenate([np.zeros((0, self.width), np.float32), *parts])

    def by_token(self, text: str) -> tuple[list[str], NDArray[np.float32]]:
        """Return the words of a text, two where they count as a pair, and what each adds to the sum, (words, width)."""
        (block,) = in_blocks(as_arrow([text]), 1) or [None]
        plain = "" if block is None else normalise(block).text.tobytes().decode()
        words = _WORD.findall(plain)
        tokens: list[str] = []
        while len(words) > len(tokens):
            both = " ".join(words[len(tokens) : len(tokens) + 2])
            pair = both != words[len(tokens)] and self._has_pair(both)
            if pair:
                words[len(tokens) : len(tokens) + 2] = [both]
            tokens.append(words[len(tokens)])
        return tokens, self.sums(tokens, 1) if tokens else np.zeros((0, self.width), np.float32)

    def _has_pair(self, words: str) -> bool:
        part = normalise(in_blocks(as_arrow([words]), 1)[0])
        hashes, _ = token_hashes(part.text, part.offsets, part.classes, np.zeros(1, bool))
        return bool(self.table.has_pairs) and bool(np.isin(hashes[0], self.table.hashes))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that :meth:`from_arrays` takes."""
        table = self.table
        return {
            "hashes": table.hashes,
            "vectors": table.vectors,
            "scale": table.scale,
            "pairs": np.array([table.has_pairs], np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TokenVectors:
        """Return the vectors from the result of :meth:`to_arrays`, or raise HiNetError, which names the array."""
        sizes = check_arrays(arrays, _SCHEMA, {})
        if not 0 < sizes["width"] <= MAX_WIDTH or not sizes["tokens"]:
            raise HiNetError(f"{sizes['tokens']:,} vectors of {sizes['width']:,} columns, expected 1 to {MAX_WIDTH:,}")
        hashes = np.array(arrays["hashes"], np.uint64)
        vectors, scale = np.array(arrays["vectors"], np.int8), np.array(arrays["scale"], np.float32)
        return cls._of(hashes, vectors, scale, bool(arrays["pairs"][0]))
