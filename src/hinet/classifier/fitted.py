"""All that a fitted classifier knows, in one place: features, the form of labels, the model and its answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.examples import Examples
from hinet.classifier.inputs import Features
from hinet.classifier.labels import LabelForm
from hinet.data import Traces
from hinet.data.matrices import is_sparse
from hinet.engine import FusedModel, Search
from hinet.files import MappedFile
from hinet.progress import EpochRecord

if TYPE_CHECKING:
    from hinet.networks import HiNet
    from hinet.networks.search import NetworkSearch

Engine = Literal["fused", "torch"]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model with what turns rows into features, and nodes into labels."""

    features: Features
    form: LabelForm
    model: FusedModel | HiNet
    threads: int | None = None  # of all answers, from text to label; see hinet.parameters.thread_count
    history: tuple[EpochRecord, ...] = ()
    fingerprint: dict[str, Any] = field(default_factory=dict)  # of the training data
    examples: Examples | None = None  # none where no rows are to be kept
    file: MappedFile | None = None  # that the weights of a loaded model are read from

    @property
    def engine(self) -> Engine:
        """Which engine the model belongs to."""
        return "fused" if isinstance(self.model, FusedModel) else "torch"

    @cached_property
    def search(self) -> Search | NetworkSearch:
        """What answers rows."""
        if isinstance(self.model, FusedModel):
            return Search(self.model, self.threads)
        from hinet.networks.search import NetworkSearch

        return NetworkSearch(self.model, self.threads)

    def rows(self, X: Any) -> Any:
        """Return checked input as the model reads it: as the rows it was trained on, whatever form it comes in."""
        self.check_file()
        return features_of(self.features, self.engine, X, self.threads)

    def check_file(self) -> None:
        """Raise FileError if weights can no longer be read, as their file was cut off."""
        if self.file is not None:
            self.file.check()

    @cached_property
    def classes(self) -> NDArray[Any]:
        """The labels that can be predicted, as the user writes them."""
        return self.form.decode(self.form.label_nodes)

    def keeping(self, rows: Any, traces: Traces, seed: int) -> Fitted:
        """Return the same with some of these rows kept as examples, beside those it has."""
        examples = Examples(rows, traces.end_nodes[traces.row_offsets[:-1]].astype(np.int64))
        if self.examples is not None:
            examples = self.examples.joined(examples)
        return replace(self, examples=examples.chosen(self._bytes_of_model, seed))

    @property
    def _bytes_of_model(self) -> int:
        if isinstance(self.model, FusedModel):
            return self.model.nbytes
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())

    def scaled(self, factor: float, slope: float) -> Fitted:
        """Return the same with all logits multiplied by ``factor``, and then this slope instead of any before."""
        found = self.sharpened(factor)
        return replace(found, model=replace(found.model, slope=slope)) if isinstance(found.model, FusedModel) else found

    def sharpened(self, factor: float) -> Fitted:
        """Return the same with all logits multiplied by ``factor``, the inverse of a temperature."""
        if isinstance(self.model, FusedModel):
            experts = self.model.experts
            mix = (experts.mix * factor).astype(np.float32)
            return replace(self, model=replace(self.model, experts=experts._replace(mix=mix)))
        from hinet.networks.temperature import sharpened

        return replace(self, model=sharpened(self.model, factor))


def features_of(features: Features, engine: Engine, X: Any, threads: int | None) -> Any:
    """Return checked input as a model of this engine reads it."""
    if features.kind == "dense" and is_sparse(X):
        X = X.toarray()
    rows = features.rows(X, threads)
    wants_sparse = engine == "fused" or features.kind == "sparse"
    return sp.csr_array(rows) if wants_sparse and not is_sparse(rows) else rows
