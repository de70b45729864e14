"""The fused engine: training, search and probabilities of the per-parent model on a CPU, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.engine.answering import Decoding, Found, FoundLabels, FoundNodes
    from hinet.engine.experts import DeepExpert, Experts, Mix, WideExpert
    from hinet.engine.fitting import ValidationRows, fit
    from hinet.engine.goals import Goals
    from hinet.engine.groups import Groups
    from hinet.engine.model import FusedModel
    from hinet.engine.search import Search
    from hinet.engine.settings import EngineSettings

# A trained model is searched without what trains one.
_HOMES = {
    "Decoding": "hinet.engine.answering",
    "DeepExpert": "hinet.engine.experts",
    "EngineSettings": "hinet.engine.settings",
    "Experts": "hinet.engine.experts",
    "Found": "hinet.engine.answering",
    "FoundLabels": "hinet.engine.answering",
    "FoundNodes": "hinet.engine.answering",
    "FusedModel": "hinet.engine.model",
    "Goals": "hinet.engine.goals",
    "Groups": "hinet.engine.groups",
    "Mix": "hinet.engine.experts",
    "Search": "hinet.engine.search",
    "ValidationRows": "hinet.engine.fitting",
    "WideExpert": "hinet.engine.experts",
    "fit": "hinet.engine.fitting",
}

__all__ = [
    "Decoding",
    "DeepExpert",
    "EngineSettings",
    "Experts",
    "Found",
    "FoundLabels",
    "FoundNodes",
    "FusedModel",
    "Goals",
    "Groups",
    "Mix",
    "Search",
    "ValidationRows",
    "WideExpert",
    "fit",
]

if not TYPE_CHECKING:  # else a checker would take any name for one of these
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
