"""The fused engine: training, search and probabilities of the per-parent model on a CPU, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.choices import Decoding
    from hinet.engine.model.experts import DeepExpert, Experts, Mix, WideExpert
    from hinet.engine.model.fused import FusedModel
    from hinet.engine.model.groups import Groups
    from hinet.engine.model.targets import Targets
    from hinet.engine.search.predictor import Found, FoundLabels, FoundNodes
    from hinet.engine.search.search import Search
    from hinet.engine.settings import EngineSettings
    from hinet.engine.training.fit import fit
    from hinet.engine.training.plan import ValidationRows

# A trained model is searched without what trains one.
_HOMES = {
    "Decoding": "hinet.choices",
    "DeepExpert": "hinet.engine.model.experts",
    "EngineSettings": "hinet.engine.settings",
    "Experts": "hinet.engine.model.experts",
    "Found": "hinet.engine.search.predictor",
    "FoundLabels": "hinet.engine.search.predictor",
    "FoundNodes": "hinet.engine.search.predictor",
    "FusedModel": "hinet.engine.model.fused",
    "Groups": "hinet.engine.model.groups",
    "Mix": "hinet.engine.model.experts",
    "Search": "hinet.engine.search.search",
    "Targets": "hinet.engine.model.targets",
    "ValidationRows": "hinet.engine.training.plan",
    "WideExpert": "hinet.engine.model.experts",
    "fit": "hinet.engine.training.fit",
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
    "Groups",
    "Mix",
    "Search",
    "Targets",
    "ValidationRows",
    "WideExpert",
    "fit",
]

if not TYPE_CHECKING:  # else a checker would take any name for one of these
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
