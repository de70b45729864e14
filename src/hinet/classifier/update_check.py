"""What an update costs: the score of rows that the model keeps, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hinet.choices import Decoding
from hinet.classifier.examples import Examples
from hinet.classifier.fitted import Fitted
from hinet.classifier.predicted_sets import micro_f1_of
from hinet.errors import HiNetError, counted
from hinet.files import check_plain
from hinet.taxonomy import TaxonomyChange

MAX_LOSS = 0.002  # of the score, without a warning


@dataclass(frozen=True)
class UpdateCheck:
    """The score of rows that a model keeps, before and after an update.

    Attributes
    ----------
    metric : {"accuracy", "micro_f1"}
        What the score is: micro-F1 for sets of labels.
    before, after : float
        The score.
    rows : int
        The number of rows.
    held_out : bool
        Whether they are validation rows. Otherwise they are training rows that the update left out.
    """

    metric: Literal["accuracy", "micro_f1"]
    before: float
    after: float
    rows: int
    held_out: bool

    @classmethod
    def restored(cls, metadata: Mapping[str, Any]) -> UpdateCheck:
        """Return the check that a manifest holds, or raise HiNetError if its values are out of range."""
        check_plain(metadata, cls, "update_check")
        check = cls(**metadata)
        if not (0 <= check.before <= 1 and 0 <= check.after <= 1 and check.rows > 0):
            raise HiNetError(f"update_check should have scores from 0 to 1 of some rows, got {dict(metadata)}")
        return check

    @property
    def has_lost(self) -> bool:
        """Whether the score fell by more than 0.2 points."""
        return self.before - self.after > MAX_LOSS

    def __str__(self) -> str:
        name = {"accuracy": "accuracy", "micro_f1": "micro-F1"}[self.metric]
        kind = "validation" if self.held_out else "training"
        rows = counted(self.rows, f"kept {kind} row")
        return f"{name} {100 * self.before:.1f}% before and {100 * self.after:.1f}% after, on {rows}"

    @property
    def warning(self) -> str:
        """The sentence that warns of a loss."""
        return f"the update made old rows worse: {self}; train again with all rows to avoid that"


def check_update(
    before: Fitted, after: Fitted, decoding: Decoding, renamed: Mapping[str, str] | None = None
) -> UpdateCheck | None:
    """Return the scores of kept rows that still have labels; None if there are none.

    Training rows are checked only if there are no validation rows.
    """
    kept = before.held_out
    if kept is None and before.examples is not None:
        kept = before.examples.checked()
    if kept is None:
        return None
    change = TaxonomyChange.between(before.codec.taxonomy, after.codec.taxonomy, renamed)
    moved, which = kept.moved(change.new_position)
    if not len(moved):
        return None
    return UpdateCheck(
        "accuracy" if after.codec.sets is None else "micro_f1",
        _score(before, kept.take(which), decoding),
        _score(after, moved, decoding),
        len(moved),
        before.held_out is not None,
    )


def _score(fitted: Fitted, kept: Examples, decoding: Decoding) -> float:
    """Return the score of a classifier on kept rows."""
    truth = kept.truth(fitted.codec.taxonomy)
    if fitted.codec.sets is not None:
        return micro_f1_of(fitted.label_sets(kept.rows), truth)
    return float(truth.are_right(fitted.predictor.decode(kept.rows, decoding).nodes).mean())
