"""The fused engine as a classifier uses it: the search of a model, how the model is kept, and how it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.fused import FusedModel
from hinet.engine.search.contributions import contributions
from hinet.engine.search.predictor import Predictor, RowParts
from hinet.engine.search.search import Search
from hinet.taxonomy import Layers

if TYPE_CHECKING:  # a model answers without what trains one
    from hinet.engine.settings import EngineSettings
    from hinet.progress import Progress

EPOCHS_OF_MORE_ROWS = 4  # enough to learn them, few enough to forget little


@dataclass(frozen=True)
class FusedPredictor(Search, Predictor):
    """A fused model and its search."""

    engine = "fused"

    @property
    def odds_scale(self) -> float:
        """What the log odds of best traces are multiplied by."""
        return self.model.odds_scale

    @property
    def can_scale_odds(self) -> bool:
        """Whether the log odds of best traces can be scaled: those of a tree can."""
        return self.layers.taxonomy.is_tree

    def scaled(self, factor: float, odds_scale: float | None = None) -> Self:
        """Return the same with all logits multiplied by ``factor``, and another odds scale if one is given."""
        experts = self.model.experts
        mix = (experts.mix * factor).astype(np.float32)
        return self._with(
            replace(
                self.model,
                experts=experts._replace(mix=mix),
                odds_scale=self.odds_scale if odds_scale is None else odds_scale,
            )
        )

    def row_parts(self, row: Any) -> RowParts:
        """Return what each feature adds to the logits, for a matrix of one row."""
        matrix = SparseMatrix.of(row)
        return RowParts(lambda group: contributions(self.model, matrix, group), matrix.indices.astype(np.int64))

    def to_arrays(self, *, half: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what is kept on disk: plain values that describe the model, and named arrays."""
        return {"half": half}, self.model.to_arrays(half=half)

    @classmethod
    def restored(
        cls, layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any = None
    ) -> Self:
        """Return the model of some layers that was kept as these arrays, or raise HiNetError."""
        return cls(FusedModel.from_arrays(layers, arrays))

    def moved_to(self, layers: Layers, came_from: NDArray[np.int64]) -> Self:
        """Return the same knowledge over other layers; ``came_from`` gives the old node of each new one, or -1."""
        from hinet.engine.training.taxonomy_transfer import transferred

        return self._with(transferred(self.model, layers, came_from))

    def taught(self, learns: NDArray[np.bool_], targets: sp.csc_array, rows: Any) -> Self:
        """Return a model whose output rows that learn were fitted to targets of options on rows."""
        from hinet.engine.training.taxonomy_transfer import taught

        return self._with(taught(self.model, learns, targets, SparseMatrix.of(rows)))

    def continued(
        self,
        rows: Any,
        traces: Traces,
        settings: EngineSettings,
        *,
        sample_weight: NDArray[np.float64] | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Return the model after learning from more rows, over the same layers."""
        from hinet.engine.training.fit import fit

        epochs = settings.deep_epochs or EPOCHS_OF_MORE_ROWS
        settings = replace(settings, deep_epochs=epochs, wide_epochs=epochs)
        return self._with(fit(rows, traces, settings, sample_weight=sample_weight, start=self.model, progress=progress))

    def _with(self, model: FusedModel) -> Self:
        return replace(self, model=model)
