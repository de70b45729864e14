"""The fused engine: training, search and probabilities of the per-parent model on a CPU, without torch."""

from hinet.engine.experts import DeepExpert, Experts, Mix, WideExpert
from hinet.engine.fitting import ValidationRows, fit
from hinet.engine.goals import Goals
from hinet.engine.groups import Groups
from hinet.engine.model import FusedModel
from hinet.engine.search import Decoding, Found, FoundNodes, Search
from hinet.engine.settings import EngineSettings

__all__ = [
    "Decoding",
    "DeepExpert",
    "EngineSettings",
    "Experts",
    "Found",
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
