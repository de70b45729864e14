"""Sentence encoders: embeddings of texts, kept on disk by content, and static vectors distilled from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.encoders.cache import CachedEncoder, default_folder
    from hinet.encoders.distillation import Distilled, distill
    from hinet.encoders.encoder import Encoder
    from hinet.encoders.packaged import packaged_encoder

_HOMES = {
    "CachedEncoder": "hinet.encoders.cache",
    "Distilled": "hinet.encoders.distillation",
    "Encoder": "hinet.encoders.encoder",
    "default_folder": "hinet.encoders.cache",
    "packaged_encoder": "hinet.encoders.packaged",
    "distill": "hinet.encoders.distillation",
}

__all__ = ["CachedEncoder", "Distilled", "Encoder", "default_folder", "distill", "packaged_encoder"]

if not TYPE_CHECKING:  # else a checker would take any name for one of these
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
