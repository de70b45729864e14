"""The fused engine: training, search and probabilities of the per-parent model on a CPU, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.engine.model.experts import DeepExpert as DeepExpert
    from hinet.engine.model.experts import Experts as Experts
    from hinet.engine.model.experts import Mix as Mix
    from hinet.engine.model.experts import WideExpert as WideExpert
    from hinet.engine.model.fused import FusedModel as FusedModel
    from hinet.engine.model.groups import Groups as Groups
    from hinet.engine.model.groups import Targets as Targets
    from hinet.engine.search.predictor import Found as Found
    from hinet.engine.search.predictor import FoundLabels as FoundLabels
    from hinet.engine.search.predictor import FoundNodes as FoundNodes
    from hinet.engine.search.predictor import Search as Search
    from hinet.engine.settings import EngineSettings as EngineSettings
    from hinet.engine.training.fit import fit as fit
    from hinet.engine.training.rows import ValidationRows as ValidationRows
else:  # a trained model predicts without the training package
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "model.experts": "DeepExpert Experts Mix WideExpert",
            "model.fused": "FusedModel",
            "model.groups": "Groups Targets",
            "search.predictor": "Found FoundLabels FoundNodes Search",
            "settings": "EngineSettings",
            "training.rows": "ValidationRows",
            "training.fit": "fit",
        },
    )
