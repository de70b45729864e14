"""Texts to vectors: static token vectors, sentence encoders, a disk cache of embeddings, and distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.encoders.cache import CachedEncoder as CachedEncoder
    from hinet.encoders.cache import default_folder as default_folder
    from hinet.encoders.distillation import Distilled as Distilled
    from hinet.encoders.distillation import distill as distill
    from hinet.encoders.encoder import Encoder as Encoder
    from hinet.encoders.sources import packaged_encoder as packaged_encoder
    from hinet.encoders.token_vectors import TokenVectors as TokenVectors
    from hinet.encoders.vector_files import read_vectors as read_vectors
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "cache": "CachedEncoder default_folder",
            "distillation": "Distilled distill",
            "encoder": "Encoder",
            "sources": "packaged_encoder",
            "token_vectors": "TokenVectors",
            "vector_files": "read_vectors",
        },
    )
