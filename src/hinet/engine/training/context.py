"""Data that the trainings of all experts share, and the interface of a training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import Kernel
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Floats, Memory
from hinet.engine.model.fused import FusedModel
from hinet.engine.model.groups import Groups, LabelSpans, Targets
from hinet.engine.settings import Dropout, EngineSettings, MemoryPlan
from hinet.engine.training.jobs import Job
from hinet.engine.training.rows import RowSums, TrainingRows, TrainingSet
from hinet.engine.training.title_units import TitleColumns
from hinet.taxonomy import Layers

SMOOTHING = 0.5  # rows added to every option before shares are computed
LEARNED_ACCUMULATOR = 2.0  # smaller lets new rows overwrite old ones, larger keeps them from being learned


@dataclass(frozen=True)
class ValidationRows:
    """Rows that are not trained on: they decide the mix of the experts, and when to stop with ``patience``."""

    rows: Any  # CSR
    traces: Traces


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """The data in the form that kernels read, and sizes that all experts share."""

    settings: EngineSettings
    start: FusedModel | None  # model that is trained further
    rows: TrainingRows
    data: TrainingSet  # rows in memory
    groups: Groups
    spans: LabelSpans
    sums: RowSums
    prior: Floats  # (output rows,) initial biases
    features: int  # number of features of the experts
    merged: NDArray[np.int32] | None  # (columns,) expert feature of each column
    whitening: Floats | None
    titles: TitleColumns | None
    memory: Memory
    members: int
    has_plain_member: bool  # whether the last member ignores dense columns
    has_flat: bool
    dropout: Dropout
    plain_dropout: Dropout  # dropout of members that ignore dense columns
    valid: tuple[SparseMatrix, Targets] | None
    valid_unknown: NDArray[Any] | None  # share of unknown n-grams of each validation row
    monitored: ValidationRows | None  # rows whose accuracy is recorded after every epoch

    @property
    def layers(self) -> Layers:
        """The layers of the taxonomy."""
        return self.targets.layers

    @property
    def targets(self) -> Targets:
        """Targets of the rows in memory."""
        return self.rows.targets

    @property
    def row_count(self) -> int:
        """Number of rows without titles."""
        return self.rows.row_count - (0 if self.titles is None else len(self.titles.nodes))

    @property
    def counts(self) -> NDArray[np.float64]:
        """(options,) Rows that take each option."""
        return self.sums.options

    @property
    def is_streamed(self) -> bool:
        """Whether the rows are on disk."""
        return self.rows.spill is not None

    @property
    def deep_epochs(self) -> int:
        """Epochs of the deep expert."""
        features = self.data.rows.mean_features
        return self.settings.epochs_of_deep(self.rows.row_count, features, streamed=self.is_streamed)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of empty experts."""
        return {
            "features": self.features,
            "neurons": len(self.layers.node),
            "rows": self.groups.rows,
            "labels": len(self.spans.neuron),
        }

    def initial_accumulator(self, usual: float) -> float:
        """Return the initial sum of squared gradients: larger if the weights are trained already."""
        return usual if self.start is None else max(usual, LEARNED_ACCUMULATOR)


class ExpertTraining(ABC):
    """The training of one expert."""

    kernels: ClassVar[tuple[Kernel, ...]] = ()  # kernels that training on a tree needs, to be compiled early

    @classmethod
    @abstractmethod
    def of(cls, context: TrainingContext) -> Self | None:
        """Return the training, or None if the settings leave this expert out."""

    def memory(self) -> MemoryPlan:
        """Return the memory that training takes."""
        return MemoryPlan(0, 0, 0, 0)

    def jobs(self) -> list[Job]:
        """Return the jobs, with their weights allocated."""
        return []

    @abstractmethod
    def trained(self) -> Any:
        """Return the arrays of the expert after its jobs are done."""

    def alone(self, job: Job) -> Any | None:
        """Return the arrays of the expert that one of its jobs gives; None if it cannot be evaluated alone."""
        return None

    def candidates(self) -> Mapping[float, Callable[[], Any]]:
        """Return versions of the expert by a parameter; the best is added if validation rows gain by it."""
        return {}
