"""Settings of the fused engine, their defaults for each kind of rows, and the memory that training takes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import log2
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

from hinet.choices import Effort
from hinet.data.matrices import MixedRows, is_sparse
from hinet.errors import HiNetError
from hinet.parameters import (
    FLAG,
    GB,
    NONE,
    SEED,
    THREADS,
    one_of,
    real,
    require_memory,
    resolve_threads,
    rules_of,
    validate_fields,
    whole,
)

if TYPE_CHECKING:
    from hinet.taxonomy import Layers

VectorKind: TypeAlias = Literal["static", "encoder"]
EFFORT = one_of(*get_args(Effort))

MIN_DEEP_EPOCHS, MAX_DEEP_EPOCHS = 5, 10
MIN_WIDE_EPOCHS, MAX_WIDE_EPOCHS = 3, 6
DEEP_ROWS, WIDE_ROWS = 800_000, 300_000  # target number of rows seen over all epochs, between these limits
WIDE_RATE = 3.0
LONG_ROW = 128  # features; rows with more get fewer epochs and a lower rate, or the model overfits
MEMBERS = 2
FEW_ROWS = 5_000  # rows up to which defaults are those of few rows
MANY_ROWS = 100_000
MANY_VALUES = 10_000_000  # non-zero values of all rows together
STREAMED_ROWS = 25_000_000  # maximum number of streamed rows that the deep expert sees over all epochs
MAX_WIDTH = 256
MAX_WIDTH_PER_MEMBER = 192
MAX_FLAT_WIDTH = 128
WIDTH_STEP = 32  # hidden units for up to LABELS_PER_STEP labels, and for each doubling of the labels
LABELS_PER_STEP = 64
MAX_FLAT_LABELS = 2_048
MAX_FEW_FLAT_LABELS = 1_024  # the same with few rows per label, where the flat expert gains less
MIN_ROWS_PER_LABEL = 8  # fewer are few
MAX_SHORT_MARGIN_LABELS = 128  # labels up to which margins gain on few short rows
MIN_SHORT_MARGIN_ROWS = 500  # with fewer rows, nothing can be held out to scale them
MAX_MARGIN_WEIGHTS = 100_000_000  # labels times features
MAX_MARGIN_PRODUCTS = 500_000_000  # labels times non-zero values of all rows, about the products per epoch
MAX_FLAT_SCORES = 200_000_000  # rows times distinct labels, with several labels per row
DROPOUT = 0.3
FEATURE_DROPOUT = 0.4
DENSE_DROPOUT = 0.2  # dropout of hidden units that read dense columns
PRIOR_STRENGTH = 0.3

DENSE_RATE = 0.3  # dense rows have few features, each of which says little
DENSE_ROWS = 60_000  # minimum number of dense rows that the deep expert sees over all epochs
MAX_DENSE_EPOCHS = 100
STATIC_EPOCHS, MIN_STATIC_EPOCHS = 0.6, 5  # share of the usual epochs with static vectors, which are learned sooner
SET_PASSES = 3  # epochs with several labels per row, without margins, for each epoch with one label
TWO_LAYER_RATE = 0.03  # a higher rate lets hidden units of two layers die
SET_EPOCHS, SET_ROWS = 40, 400_000  # dense rows with several labels: maximum epochs, rows seen over all epochs
SET_ACCUMULATOR = 1.0  # large, so that the few rows of rare labels move the weights little
SET_VALUES = 80  # values per row; rows with more move hidden units further at a time and need a lower rate
SET_DROPOUT, MIN_SET_DROPOUT = 0.6, 0.3  # dropout with few and with many rows
SET_DROPOUT_ROWS, SET_DROPOUT_STEP = 2_500, 0.075  # rows up to which they are few; less dropout per doubling
SET_FEATURE_DROPOUT = 0.1
SET_MEMBERS = 6
SET_WIDTH = 256
SET_DEEP_WIDTH = 64  # hidden units of the deep expert next to the flat one and margins, which count more

_COUNT = whole(1)
_DROPOUT = real(0, below=1)
_POSITIVE = real(above=0)
REMEDY = "lower `width`, leave the wide expert out with `wide=False`, or keep fewer features"


class Dropout(NamedTuple):
    """Shares of features and of hidden units that are dropped at random from each row."""

    features: float
    units: float


@dataclass(frozen=True)
class EngineSettings:
    """Experts to train and how to train them.

    Attributes
    ----------
    effort : {"quick", "default"}
        Amount of training where the settings below are not given: "quick" trains one narrow member for half the epochs
        and skips the wide expert if there is a flat one.
    members : int, optional
        Number of deep experts, and of flat ones, that start from different random weights and are averaged. The default
        is two, three with dense columns, and one with many rows or values. The last of several members ignores dense
        columns, so that it makes different errors.
    width : int, optional
        Hidden units per member of the deep expert. The default grows with the number of labels up to a limit, which is
        higher for a single member.
    flat_width : int, optional
        Hidden units per member of the flat expert. The default is that of ``width``, with a limit of its own.
    flat_upper : float
        Weight of each ancestor of a label in the cost of the flat expert; the label itself has weight 1.
    dropout : float, optional
        Share of hidden units dropped at random for each row; by default 0 if features are dropped.
    feature_dropout : float, optional
        Share of features dropped at random for each row. By default 0, unless ``dropout`` is not given and there are
        many rows with redundant features, such as character n-grams.
    deep_rate, wide_rate : float, optional
        Learning rates; by default that of the wide expert is lower for rows with many features.
    deep_accumulator, wide_accumulator : float
        Initial sums of squared gradients; smaller values make the first steps larger.
    deep_epochs, wide_epochs : int, optional
        By default fewer for more rows, and for the deep expert also for rows with many features.
    wide : bool
        Whether to train the wide expert, unless margins take its place.
    wide_prune : float
        Weights of the wide expert that usually add less than this to a logit are dropped after training.
    wide_buckets : int, optional
        Number of buckets into which the features of the wide expert are hashed, to save memory.
    flat : bool, optional
        Whether to train the flat expert. By default it is trained for trees with few labels; with several labels per
        row, if there are enough rows per label and neither are too many.
    margin : bool, optional
        Whether to train the margin expert, a linear support vector machine for each label. By default it is trained for
        long rows if labels are few enough, and in place of the wide expert for few rows with few labels; with several
        labels per row, if there is a flat expert, too.
    prior_strength : float, optional
        Strength of the logit adjustment, which depends on the share of each option in its group.
    neighbours : int
        Maximum number of training rows of a label that texts are compared with by their vectors, next to the titles of
        the label; 0 for no comparison.
    two_layers : bool
        Whether deep experts have a second hidden layer, with rectified units only; requires several labels per row.
    whiten : bool
        Whether to whiten dense columns within labels before training. With more than 128 labels only the 128 directions
        in which labels differ most are kept.
    patience : int, optional
        Number of epochs without a lower cost on the validation rows after which an expert stops; its best epoch is
        kept.
    seed : int
        The same seed gives the same model for any number of threads.
    threads : int, optional
        Number of threads; by default, and with -1, one per core; -2 is one fewer.
    memory_limit : float, optional
        In GB, by default the memory of the machine. Training that would take more is refused before it starts.
    """

    effort: Annotated[Effort, EFFORT] = "default"
    members: Annotated[int | None, _COUNT | NONE] = None
    width: Annotated[int | None, _COUNT | NONE] = None
    dropout: Annotated[float | None, _DROPOUT | NONE] = None
    feature_dropout: Annotated[float | None, _DROPOUT | NONE] = None
    deep_rate: Annotated[float, _POSITIVE] = 0.1
    deep_accumulator: Annotated[float, _POSITIVE] = 1e-2
    deep_epochs: Annotated[int | None, _COUNT | NONE] = None
    wide: Annotated[bool, FLAG] = True
    wide_rate: Annotated[float | None, _POSITIVE | NONE] = None
    wide_accumulator: Annotated[float, _POSITIVE] = 0.05
    wide_epochs: Annotated[int | None, _COUNT | NONE] = None
    wide_prune: Annotated[float, real(0)] = 0.03
    wide_buckets: Annotated[int | None, _COUNT | NONE] = None
    flat: Annotated[bool | None, FLAG | NONE] = None
    flat_width: Annotated[int | None, _COUNT | NONE] = None
    flat_upper: Annotated[float, real(0)] = 0.4
    margin: Annotated[bool | None, FLAG | NONE] = None
    prior_strength: Annotated[float | None, real() | NONE] = None
    neighbours: Annotated[int, whole(0)] = 16
    two_layers: Annotated[bool, FLAG] = False
    whiten: Annotated[bool, FLAG] = False
    patience: Annotated[int | None, _COUNT | NONE] = None
    seed: Annotated[int, SEED] = 0
    threads: Annotated[int | None, THREADS] = None
    memory_limit: Annotated[float | None, real(above=0, infinite=True) | NONE] = None

    def __post_init__(self) -> None:
        validate_fields(self, RULES)

    def members_for(self, rows: int, features: float = 0, *, dense: bool = False) -> int:
        """Return the number of members for ``rows`` rows with ``features`` features on average."""
        many = rows >= MANY_ROWS or rows * features >= MANY_VALUES
        return self.members or (1 if many or self.is_quick else MEMBERS + dense)

    def width_for(self, members: int, labels: int) -> int:
        """Return the number of hidden units per member."""
        max_width = MAX_FLAT_WIDTH if self.is_quick else MAX_WIDTH if members == 1 else MAX_WIDTH_PER_MEMBER
        return self.width or min(max_width, _width_of(labels))

    def flat_width_for(self, labels: int, *, several: bool = False) -> int:
        """Return the number of hidden units per member of the flat expert; more with several labels per row."""
        return self.flat_width or min(MAX_WIDTH if several else MAX_FLAT_WIDTH, _width_of(labels))

    def dropout_for(self, *, redundant: bool, dense: bool = False) -> Dropout:
        """Return the dropout for rows with redundant features or with dense columns."""
        features, units = self.feature_dropout, self.dropout
        if dense and features is None and units is None:
            return Dropout(0.0, DENSE_DROPOUT)
        if features is None:
            features = FEATURE_DROPOUT if units is None and redundant else 0.0
        if units is None:
            units = 0.0 if features else DROPOUT
        return Dropout(features, units)

    def epochs_of_deep(
        self, rows: int, features: float = 0, *, streamed: bool = False, several: bool = False, margin: bool = False
    ) -> int:
        """Return the epochs of the deep expert for ``rows`` rows with ``features`` features on average.

        One yes or no per label carries less information than a choice among all labels, so rows with several labels get
        more epochs, unless margins learn from them, too.
        """
        usual = max(MIN_DEEP_EPOCHS, round(min(MAX_DEEP_EPOCHS, DEEP_ROWS / rows) * _long_row_factor(features)))
        if streamed:
            usual = min(usual, max(1, round(STREAMED_ROWS / rows)))
        return self.deep_epochs or self.fewer_if_quick(usual) * (SET_PASSES if several and not margin else 1)

    def epochs_of_wide(self, rows: int) -> int:
        """Return the epochs of the wide expert."""
        return self.wide_epochs or self.fewer_if_quick(
            min(MAX_WIDE_EPOCHS, max(MIN_WIDE_EPOCHS, round(WIDE_ROWS / rows)))
        )

    def wide_rate_for(self, features: float) -> float:
        """Return the learning rate of the wide expert for rows with ``features`` features on average."""
        return self.wide_rate or WIDE_RATE * _long_row_factor(features)

    def wants_wide(self, *, flat: bool, margin: bool = False) -> bool:
        """Return whether to train the wide expert, given the others; margins replace it."""
        return self.wide and not (self.is_quick and flat) and not margin

    @property
    def is_quick(self) -> bool:
        """Whether ``effort`` is "quick"."""
        return self.effort == "quick"

    def fewer_if_quick(self, epochs: int) -> int:
        """Return half of the epochs if ``effort`` is "quick"."""
        return (epochs + 1) // 2 if self.is_quick else epochs

    def wants_flat(self, labels: int, rows: int, layers: Layers, pairs: float = 0) -> bool:
        """Return whether to train the flat expert on ``rows`` rows and ``labels`` labels.

        With several labels per row, ``pairs`` is the number of labels of all rows together.
        """
        if self.flat and self.two_layers:
            raise HiNetError("the flat expert has one layer; leave it out with `two_layers`")
        if self.flat and not layers.is_tree:
            raise HiNetError("the flat expert is for trees; leave it out for a DAG with one label per row")
        if self.flat is not None:
            return self.flat
        if layers.multilabel:
            enough = pairs >= MIN_ROWS_PER_LABEL * labels and rows * labels <= MAX_FLAT_SCORES
            return enough and not self.two_layers and not self.is_quick
        return layers.is_tree and has_flat_by_default(labels, rows)

    def wants_margin(
        self,
        labels: int,
        values: int,
        rows: int,
        features: int,
        layers: Layers,
        *,
        flat: bool = False,
        dense: bool = False,
        titles: int = 0,
    ) -> bool:
        """Return whether to train the margin expert on ``rows`` rows with ``values`` non-zero values.

        The last ``titles`` rows are titles, which are not held out.

        With several labels per row, it comes in addition to a ``flat`` expert. It does not read ``dense`` columns, so
        that it does not replace the wide expert next to them if rows are few.
        """
        possible = layers.is_tree  # true of every DAG with several labels per row
        if self.margin and not possible:
            raise HiNetError("the margin expert is for trees and for several labels per row; leave it out")
        if self.margin is not None:
            return self.margin
        if layers.multilabel:
            return flat and values > LONG_ROW * rows
        small = labels * features <= MAX_MARGIN_WEIGHTS and labels * values <= MAX_MARGIN_PRODUCTS
        min_rows = max(MIN_SHORT_MARGIN_ROWS, MIN_ROWS_PER_LABEL * labels)
        few = self.wide and labels <= MAX_SHORT_MARGIN_LABELS and min_rows <= rows - titles < FEW_ROWS and not dense
        return possible and small and (few or values > LONG_ROW * rows) and not self.is_quick

    @property
    def adjustment(self) -> float:
        """Strength of the logit adjustment."""
        return PRIOR_STRENGTH if self.prior_strength is None else self.prior_strength

    @property
    def thread_count(self) -> int:
        """Number of threads to use."""
        return resolve_threads(self.threads)

    def shaping(self) -> dict[str, object]:
        """Return the settings that the trained model depends on."""
        free = {"threads", "memory_limit"}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in free}


RULES = rules_of(EngineSettings)


def has_flat_by_default(labels: int, rows: int) -> bool:
    """Return whether a flat expert is trained on rows with one label each in a tree."""
    return labels <= (MAX_FLAT_LABELS if rows >= MIN_ROWS_PER_LABEL * labels else MAX_FEW_FLAT_LABELS)


def _long_row_factor(features: float) -> float:
    """Return the scale factor for long rows."""
    return min(1.0, LONG_ROW / max(features, 1))


def _width_of(labels: int) -> int:
    """Return the number of hidden units for this number of labels."""
    doublings = max(0, (labels - 1).bit_length() - (LABELS_PER_STEP - 1).bit_length())
    return WIDTH_STEP * (1 + doublings)


class RowShape(NamedTuple):
    """Number of rows, their mean number of sparse features, and whether they are streamed."""

    rows: int
    features: float
    streamed: bool = False

    @classmethod
    def of(cls, rows: Any) -> RowShape:
        """Return the shape of a CSR matrix, a dense one, or mixed rows."""
        sparse = rows.sparse if isinstance(rows, MixedRows) else rows
        return cls(rows.shape[0], sparse.nnz / max(rows.shape[0], 1) if is_sparse(sparse) else 0.0)

    def epochs(self, settings: EngineSettings, *, several: bool = False) -> int:
        """Return the epochs of the deep expert, if long rows with several labels have margins."""
        margin = several and self.features > LONG_ROW
        return settings.epochs_of_deep(self.rows, self.features, streamed=self.streamed, several=several, margin=margin)


def settings_for(
    settings: EngineSettings,
    shape: RowShape,
    *,
    dense: bool = False,
    several: bool = False,
    vectors: VectorKind | None = None,
) -> EngineSettings:
    """Return the settings with the defaults for one kind of rows filled in.

    Parameters
    ----------
    settings : EngineSettings
        The settings of the user.
    shape : RowShape
        For dense rows in memory with several labels, the shape of their CSR form.
    dense : bool
        Whether all columns are numbers.
    several : bool
        Whether rows may have several labels.
    vectors : {"static", "encoder"}, optional
        Source of the vectors of texts that stand next to the n-grams.
    """
    if dense and several and not shape.streamed:
        return _for_dense_sets(settings, shape)
    if dense:
        settings = _for_dense_rows(settings, shape)
    if vectors is None:
        return settings
    settings = replace(settings, whiten=True)
    if vectors == "encoder" or several:
        return settings
    usual = shape.epochs(settings)
    epochs = max(min(MIN_STATIC_EPOCHS, usual), round(STATIC_EPOCHS * usual))
    return replace(settings, deep_epochs=settings.deep_epochs or epochs)


def _for_dense_sets(settings: EngineSettings, shape: RowShape) -> EngineSettings:
    """Return the settings for dense rows in CSR form with several labels each.

    A few attributes say little about many labels, so strong regularisation matters most.
    """
    rows = max(shape.rows, 1)
    min_epochs = settings.fewer_if_quick(min(SET_EPOCHS, round(SET_ROWS / rows)))
    members, width = (None, None) if settings.is_quick else (SET_MEMBERS, SET_WIDTH)
    return replace(
        settings,
        wide=False,
        two_layers=True,
        deep_rate=TWO_LAYER_RATE * min(1.0, (SET_VALUES / max(shape.features, 1.0)) ** 0.5),
        deep_accumulator=SET_ACCUMULATOR,
        deep_epochs=settings.deep_epochs or max(settings.epochs_of_deep(rows), min_epochs),
        dropout=_set_dropout(rows) if settings.dropout is None else settings.dropout,
        feature_dropout=SET_FEATURE_DROPOUT
        if (settings.dropout, settings.feature_dropout) == (None, None)
        else settings.feature_dropout,
        members=settings.members or members,
        width=settings.width or width,
    )


def _set_dropout(rows: int) -> float:
    """Return the dropout for dense rows with several labels each; more rows need less."""
    doublings = max(0.0, log2(rows / SET_DROPOUT_ROWS))
    return max(MIN_SET_DROPOUT, SET_DROPOUT - SET_DROPOUT_STEP * doublings)


def _for_dense_rows(settings: EngineSettings, shape: RowShape) -> EngineSettings:
    """Return the settings for dense rows with one label each; small data sets get more epochs, and no margins."""
    rows = shape.rows
    min_epochs = settings.fewer_if_quick(min(MAX_DENSE_EPOCHS, round(DENSE_ROWS / rows)))
    epochs = settings.deep_epochs or max(settings.epochs_of_deep(rows), min_epochs)
    margin = settings.margin if settings.margin is not None or shape.features > LONG_ROW else False
    return replace(settings, deep_rate=DENSE_RATE, deep_epochs=epochs, wide_rate=WIDE_RATE, margin=margin)


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that training takes in addition to the rows.

    Attributes
    ----------
    weights : int
        Parameters of all experts.
    accumulators : int
        Sums of squared gradients.
    scratch : int
        Temporary arrays of the wide expert during its training.
    joining : int
        Vectors of titles, and the copies made while members of the deep expert are concatenated and quantised.
    """

    weights: int
    accumulators: int
    scratch: int
    joining: int

    @property
    def total(self) -> int:
        """Peak size."""
        return self.weights + self.accumulators + max(self.scratch, self.joining)

    def __add__(self, other: MemoryPlan) -> MemoryPlan:
        return MemoryPlan(
            self.weights + other.weights,
            self.accumulators + other.accumulators,
            self.scratch + other.scratch,
            self.joining + other.joining,
        )

    def __str__(self) -> str:
        return (
            f"training takes {self.total / GB:.2f} GB: weights {self.weights / GB:.2f}, "
            f"accumulators {self.accumulators / GB:.2f}, scratch {self.scratch / GB:.2f}"
        )

    def check(self, limit: float | None) -> None:
        """Raise HiNetError if the total exceeds ``limit`` GB, or without a limit the memory of the machine."""
        if limit is None:
            require_memory(self.total, str(self), REMEDY)
        elif self.total > limit * GB:
            raise HiNetError(f"{self}, more than `memory_limit={limit}`; {REMEDY}")


def plan_memory(*, features: int, outputs: int, width: int, titles: int = 0) -> MemoryPlan:
    """Return the memory of a deep expert with ``width`` hidden units, and of ``titles`` bytes for titles."""
    weights = (features + outputs) * width
    return MemoryPlan(4 * weights, 8 * (features + outputs), 0, 5 * weights + titles)
