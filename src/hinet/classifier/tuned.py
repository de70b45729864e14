"""Texts read by an encoder that was fine-tuned with the head: the encoder is a part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.extras import require

if TYPE_CHECKING:
    from hinet.encoders import Encoder
    from hinet.networks.text_encoder import TextEncoder


@dataclass(frozen=True, eq=False)
class TunedInput:
    """Rows are texts: the embeddings that the fine-tuned encoder gives them."""

    encoder: TextEncoder
    source: str  # the folder or name of the encoder that training began with
    kind: Literal["text"] = "text"

    @classmethod
    def of(cls, encoder: str | Path | Encoder) -> TunedInput:
        """Return a copy of an encoder, or of the one at a folder or name, to be trained."""
        require("sentence_transformers", "a fine-tuned encoder")
        from hinet.encoders import Encoder
        from hinet.networks.text_encoder import TextEncoder

        if not isinstance(encoder, str | Path | Encoder):
            raise HiNetError("the encoder of a saved model cannot be fine-tuned; set `encoder` to its folder")
        found = encoder if isinstance(encoder, Encoder) else Encoder.load(encoder, device="cpu")
        source = found.name if isinstance(encoder, Encoder) else str(encoder)
        return cls(TextEncoder.of(found), source)

    @property
    def count(self) -> int:
        """The number of features."""
        return self.encoder.width

    @property
    def parameter(self) -> dict[str, Any]:
        """The parameter of a classifier that asks for it."""
        return {"encoder": self.source}

    def rows(self, X: Any, threads: int | None, *, sparse: bool = False) -> NDArray[np.float32]:
        """Return the embeddings of texts, (n, count)."""
        return self.encoder.embed(X, threads)

    def names(self, features: NDArray[np.int64]) -> list[str]:
        """Return the numbers of features."""
        return [f"feature {number}" for number in features.tolist()]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are kept on disk."""
        return self.encoder.to_arrays()

    def describe(self) -> dict[str, Any]:
        """Return what else is kept, as plain values for JSON."""
        return {"tuned": {"source": self.source, **self.encoder.shape}}

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TunedInput:
        """Return what gave this description and these arrays, or raise HiNetError."""
        require("sentence_transformers", "a fine-tuned encoder")
        from hinet.networks.text_encoder import TextEncoder

        shape = {name: value for name, value in described.items() if name != "source"}
        if not described["source"]:
            raise HiNetError("features.tuned.source is empty")
        return cls(TextEncoder.restored(shape, arrays), described["source"])  # type: ignore[arg-type]
