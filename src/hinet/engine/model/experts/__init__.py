"""The experts of the fused model.

- *deep*: hidden units from embeddings of the features, then a linear function for each option
- *wide*: one weight for each feature and option that were seen together
- *flat*: a deep expert over all labels at once, pooled into the sibling groups
- *prototypes*: the mean row of each label, compared by cosine, pooled in the same way
- *neighbours*: the training rows and titles whose vectors are most like that of a row
- *margin*: a linear support vector machine for each label against all others, pooled like the flat expert

The logit of an option is a weighted sum over the experts. If an expert scores labels, its score of an option is the
log-sum-exp of the labels below it, so that each expert by itself is a proper distribution over labels.

To add an expert:

1. Write a module of this package with a NamedTuple of its arrays, its inlined scoring functions and a subclass of
   :class:`ExpertRecord`. Its class for training, an ``ExpertTraining``, may be in the same module.
2. Add it to the tables below: ``EXPERTS``, ``Mix``, ``Experts`` and the indices.
3. Call its scoring functions in :mod:`hinet.engine.search.scoring_kernels`.
4. Write its tests.

Saving, loading, explanations, transfer, training, checkpoints and compilation follow from the record.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hinet.engine.model.experts.deep import DEEP_RECORD, DeepExpert
from hinet.engine.model.experts.labels import FLAT_RECORD, MARGIN_RECORD, PROTOTYPE_RECORD, LabelWeights
from hinet.engine.model.experts.neighbours import NEIGHBOUR_RECORD, Memory
from hinet.engine.model.experts.record import ExpertRecord, Floats
from hinet.engine.model.experts.wide import WIDE_RECORD, WideExpert
from hinet.engine.model.groups import LabelSpans

__all__ = ["EXPERTS", "DeepExpert", "ExpertRecord", "Experts", "Floats", "LabelWeights", "Memory", "Mix", "WideExpert"]

EXPERTS: tuple[ExpertRecord, ...] = (
    DEEP_RECORD,
    WIDE_RECORD,
    FLAT_RECORD,
    PROTOTYPE_RECORD,
    NEIGHBOUR_RECORD,
    MARGIN_RECORD,
)


class Mix(NamedTuple):
    """The weight of each expert in the logits."""

    deep: float = 0.0
    wide: float = 0.0
    flat: float = 0.0
    prototypes: float = 0.0
    neighbours: float = 0.0
    margin: float = 0.0


class Experts(NamedTuple):
    """The arrays of all experts; one that is not used is empty and has no weight."""

    deep: DeepExpert
    wide: WideExpert
    flat: DeepExpert
    prototypes: LabelWeights
    neighbours: Memory
    margin: LabelWeights
    spans: LabelSpans
    mix: Floats  # (experts,) as in Mix


DEEP, WIDE, FLAT, PROTOTYPES, NEIGHBOURS, MARGIN = range(len(Mix._fields))  # indices into ``mix`` for kernels
SCORES_LABELS = np.array([record.outputs == "labels" for record in EXPERTS])  # indexed like ``mix``
