"""The experts of the fused model.

- *deep*: hidden units from embeddings of the features, then a linear function for each option
- *wide*: one weight for each feature and option that were seen together
- *flat*: a deep expert over all labels at once, pooled into the sibling groups
- *prototypes*: the mean row of each label, compared by cosine, pooled in the same way
- *neighbours*: the training rows and titles whose vectors are most like that of a row
- *margin*: a linear support vector machine for each label against all others, pooled like the flat expert

The logit of an option is a weighted sum over the experts. If an expert scores labels, its score of an option is the
log-sum-exp of the labels below it, so that each expert by itself is a proper distribution over labels.

CONTRIBUTING describes how to add an expert.
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

__all__ = [
    "EXPERTS",
    "DeepExpert",
    "ExpertRecord",
    "Experts",
    "Floats",
    "LabelWeights",
    "Memory",
    "Mix",
    "WideExpert",
    "usual_mix",
]

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

USUAL_MARGIN, REST = 0.35, 0.7  # weight of the margin expert in the mix, and the factor of the others with it
SETS_WITH_MARGIN = Mix(deep=0.1, flat=0.4, margin=0.55)
USUAL_NEIGHBOURS = 0.12  # weight of neighbours in the mix


def usual_mix(
    *,
    wide: bool,
    flat: bool,
    margin: bool = False,
    long: bool = False,
    vectors: bool = False,
    several: bool = False,
) -> Floats:
    """Return the default mix, without validation rows.

    The wide expert gets more weight for long rows, and less with vectors of texts, which it does not read. With several
    labels per row the flat expert gets most weight, and margins more than it.
    """
    if flat and several and margin:
        return np.array(SETS_WITH_MARGIN, np.float32)
    if flat and several:
        chosen = Mix(deep=0.1, wide=0.2, flat=0.7) if wide else Mix(deep=0.2, flat=0.8)
    elif flat and wide:
        chosen = Mix(deep=0.3, wide=0.3, flat=0.3) if long else Mix(deep=0.4, wide=0.1, flat=0.4)
    elif flat:
        chosen = Mix(deep=0.5, flat=0.5)
    elif wide:
        chosen = Mix(deep=0.7, wide=0.2) if vectors else Mix(deep=0.5, wide=0.5)
    else:
        chosen = Mix(deep=1.0)
    mix = np.array(chosen, np.float32)
    if margin:
        mix *= np.float32(REST)
        mix[MARGIN] = USUAL_MARGIN
    return mix
