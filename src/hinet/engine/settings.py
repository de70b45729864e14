"""How the fused engine trains: every default of it has its home here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from hinet.errors import HiNetError
from hinet.memory import GB, require_memory
from hinet.parameters import FLAG, NONE, SEED, THREADS, Rules, one_of, real, resolve_threads, validate_fields, whole

if TYPE_CHECKING:
    from hinet.taxonomy import Layers

Effort: TypeAlias = Literal["quick", "default"]
EFFORT = one_of(*get_args(Effort))

LEAST_DEEP_EPOCHS, MOST_DEEP_EPOCHS = 5, 10
MOST_WIDE_EPOCHS = 6
WIDE_RATE = 3.0
LONG_ROW = 128  # features; a longer row teaches more at a time, and is learned by heart if it is seen as often
MEMBERS = 2
MANY_ROWS = 100_000
MANY_VALUES = 10_000_000  # of all rows together
STREAMED_ROWS = 25_000_000  # that the deep expert sees over all epochs, where rows are streamed
WIDTH = 256  # at most
WIDTH_OF_MEMBER = 192
WIDTH_OF_FLAT = 128
WIDTH_STEP = 32  # units that so many labels need, and each doubling of them more
LABELS_OF_STEP = 64
MOST_FLAT_LABELS = 2_048
LEAST_FLAT_ROWS = 8  # rows a label
MAX_FLAT_SCORES = 200_000_000  # rows times labels that rows have, with several labels per row
DROPOUT = 0.3
FEATURE_DROPOUT = 0.4
DROPOUT_BESIDE_DENSE = 0.2  # of units that read dense columns too
PRIOR_STRENGTH = 0.3

_COUNT = whole(1)
_DROPOUT = real(0, below=1)
_POSITIVE = real(above=0)
RULES: Rules = {
    "effort": EFFORT,
    "members": _COUNT | NONE,
    "width": _COUNT | NONE,
    "dropout": _DROPOUT | NONE,
    "feature_dropout": _DROPOUT | NONE,
    "deep_rate": _POSITIVE,
    "deep_slot": _POSITIVE,
    "deep_epochs": _COUNT | NONE,
    "wide": FLAG,
    "wide_rate": _POSITIVE | NONE,
    "wide_slot": _POSITIVE,
    "wide_epochs": _COUNT | NONE,
    "wide_prune": real(0),
    "wide_buckets": _COUNT | NONE,
    "flat": FLAG | NONE,
    "flat_width": _COUNT | NONE,
    "flat_upper": real(0),
    "prior_strength": real() | NONE,
    "two_layers": FLAG,
    "whiten": FLAG,
    "patience": _COUNT | NONE,
    "seed": SEED,
    "threads": THREADS,
    "memory_limit": real(above=0, infinite=True) | NONE,
}
REMEDY = "lower `width`, leave the wide expert out with `wide=False`, or keep fewer features"


class Dropout(NamedTuple):
    """Shares that are left out of each row at random."""

    features: float
    units: float


@dataclass(frozen=True)
class EngineSettings:
    """What to train and how; the defaults are one recipe for every data set.

    Attributes
    ----------
    effort : {"quick", "default"}
        How much is trained where the settings below leave it open: "quick" has one narrow member, half the epochs, and
        no wide expert beside a flat one.
    members : int, optional
        How many deep experts, and flat ones, are trained from different starts and averaged; by default two, or three
        if there are dense columns, and one if there are many rows, or values of them. The last of several leaves dense
        columns out: it errs on other rows.
    width : int, optional
        Hidden units of each member of the deep expert; by default more the more labels there are, up to a limit that
        is higher if there is but one member.
    flat_width : int, optional
        Hidden units of each member of the flat expert; by default as ``width``, up to a limit of its own.
    flat_upper : float
        How much each node at or above a label counts in the cost of the flat expert; the label counts 1.
    dropout : float, optional
        Share of the hidden units that are left out, at random, for each row; by default none where features are.
    feature_dropout : float, optional
        Share of the features that are left out, at random, for each row; by default some of them if there are many
        rows with features that repeat each other, as character n-grams do, and ``dropout`` is not given; else none.
    deep_epochs, wide_epochs : int, optional
        By default fewer the more rows there are; of the deep expert also the more features rows have on average.
    wide_rate : float, optional
        By default lower the more features rows have on average.
    wide : bool
        Whether to train the wide expert.
    wide_prune : float
        After training, weights of the wide expert that usually add less than this to a logit are dropped.
    wide_buckets : int, optional
        Hash the features of the wide expert into so many, to save memory.
    flat : bool, optional
        Whether to train the flat expert; by default if there are few labels with many rows each, and the taxonomy
        is a tree; with several labels per row, if there are not too many of both.
    prior_strength : float, optional
        Of the logit adjustment, by the share of each option in its group.
    two_layers : bool
        Whether deep experts have a second layer of hidden units, all of them rectified; for several labels a row only.
    whiten : bool
        Whether experts train on dense columns in which rows of one label vary alike in all directions; if there are
        more than 128 labels, on those 128 alone in which labels differ most.
    patience : int, optional
        Epochs of an expert without a lower cost of the validation rows after which it stops, the best epoch kept.
    seed : int
        The same seed gives the same model, whatever the number of threads.
    threads : int, optional
        By default, and with -1, one for each core; -2 is one fewer.
    memory_limit : float, optional
        In GB, by default what the machine has; a model that would take more to train is refused before training starts.
    """

    effort: Effort = "default"
    members: int | None = None
    width: int | None = None
    dropout: float | None = None
    feature_dropout: float | None = None
    deep_rate: float = 0.1
    deep_slot: float = 1e-2  # what the sums of squared gradients start from: smaller makes the first steps huge
    deep_epochs: int | None = None
    wide: bool = True
    wide_rate: float | None = None
    wide_slot: float = 0.05
    wide_epochs: int | None = None
    wide_prune: float = 0.03
    wide_buckets: int | None = None
    flat: bool | None = None
    flat_width: int | None = None
    flat_upper: float = 0.4
    prior_strength: float | None = None
    two_layers: bool = False
    whiten: bool = False
    patience: int | None = None
    seed: int = 0
    threads: int | None = None
    memory_limit: float | None = None

    def __post_init__(self) -> None:
        validate_fields(self, RULES)

    def members_for(self, rows: int, features: float = 0, *, dense: bool = False) -> int:
        """Return how many members train on so many rows, with so many features each and maybe dense columns."""
        many = rows >= MANY_ROWS or rows * features >= MANY_VALUES
        return self.members or (1 if many or self.is_quick else MEMBERS + dense)

    def width_for(self, members: int, labels: int) -> int:
        """Return the hidden units of each of so many members that tell so many labels apart."""
        most = WIDTH_OF_FLAT if self.is_quick else WIDTH if members == 1 else WIDTH_OF_MEMBER
        return self.width or min(most, _width_of(labels))

    def flat_width_for(self, labels: int, *, several: bool = False) -> int:
        """Return the hidden units of each member of the flat expert; more with several labels per row."""
        return self.flat_width or min(WIDTH if several else WIDTH_OF_FLAT, _width_of(labels))

    def dropout_for(self, *, to_spare: bool, dense: bool = False) -> Dropout:
        """Return what is left out of rows, given whether they have features to spare, and dense columns."""
        features, units = self.feature_dropout, self.dropout
        if dense and features is None and units is None:
            return Dropout(0.0, DROPOUT_BESIDE_DENSE)
        if features is None:
            features = FEATURE_DROPOUT if units is None and to_spare else 0.0
        if units is None:
            units = 0.0 if features else DROPOUT
        return Dropout(features, units)

    def epochs_of_deep(self, rows: int, features: float = 0, *, streamed: bool = False) -> int:
        """Return how often the deep expert goes over so many rows, with so many features each on average.

        It goes over very many rows that are streamed less often.
        """
        usual = max(LEAST_DEEP_EPOCHS, round(min(MOST_DEEP_EPOCHS, 800_000 / rows) * _share_of_long(features)))
        if streamed:
            usual = min(usual, max(1, round(STREAMED_ROWS / rows)))
        return self.deep_epochs or self.fewer_if_quick(usual)

    def epochs_of_wide(self, rows: int) -> int:
        """Return how often the wide expert goes over so many rows."""
        return self.wide_epochs or self.fewer_if_quick(min(MOST_WIDE_EPOCHS, max(3, round(300_000 / rows))))

    def wide_rate_for(self, features: float) -> float:
        """Return the rate of the wide expert for rows with so many features each on average."""
        return self.wide_rate or WIDE_RATE * _share_of_long(features)

    def wants_wide(self, *, flat: bool) -> bool:
        """Return whether to train the wide expert, given whether there is a flat one."""
        return self.wide and not (self.is_quick and flat)

    @property
    def is_quick(self) -> bool:
        """Whether little effort is wanted."""
        return self.effort == "quick"

    def fewer_if_quick(self, epochs: int) -> int:
        """Return half of the epochs if little effort is wanted."""
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
            enough = pairs >= LEAST_FLAT_ROWS * labels and rows * labels <= MAX_FLAT_SCORES
            return enough and not self.two_layers and not self.is_quick
        return layers.is_tree and labels <= MOST_FLAT_LABELS and rows >= LEAST_FLAT_ROWS * labels

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


def _share_of_long(features: float) -> float:
    """Return how much of what is usual is enough for rows with so many features: less of long ones."""
    return min(1.0, LONG_ROW / max(features, 1))


def _width_of(labels: int) -> int:
    """Return enough hidden units for so many labels: a step more whenever these double."""
    doublings = max(0, (labels - 1).bit_length() - (LABELS_OF_STEP - 1).bit_length())
    return WIDTH_STEP * (1 + doublings)


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that training will take on top of the rows themselves.

    Attributes
    ----------
    weights : int
        Parameters of all experts.
    accumulators : int
        Sums of squared gradients.
    scratch : int
        What the wide expert needs besides, while it trains.
    joining : int
        Vectors of titles, and copies made while the members of the deep expert are put side by side and turned into 8
        bits.
    """

    weights: int
    accumulators: int
    scratch: int
    joining: int

    @property
    def total(self) -> int:
        """All of it, at the peak."""
        return self.weights + self.accumulators + max(self.scratch, self.joining)

    def __str__(self) -> str:
        return (
            f"training takes {self.total / GB:.2f} GB: weights {self.weights / GB:.2f}, "
            f"accumulators {self.accumulators / GB:.2f}, scratch {self.scratch / GB:.2f}"
        )

    def check(self, limit: float | None) -> None:
        """Raise HiNetError if it is more than ``limit`` GB, or without a limit more than there is."""
        if limit is None:
            require_memory(self.total, str(self), REMEDY)
        elif self.total > limit * GB:
            raise HiNetError(f"{self}, more than `memory_limit={limit}`; {REMEDY}")


def plan_memory(
    *,
    features: int,
    outputs: int,
    width: int,
    wide_weights: int = 0,
    wide_scratch: int = 0,
    labels: int = 0,
    flat_width: int = 0,
    titles: int = 0,
) -> MemoryPlan:
    """Return the plan for experts of these sizes; ``labels`` is 0 without a flat expert, ``titles`` is in bytes."""
    flat = (features + labels) * flat_width if labels else 0
    deep = (features + outputs) * width
    weights = 4 * (deep + flat) + 8 * wide_weights
    accumulators = 4 * (features + outputs) * 2
    return MemoryPlan(weights, accumulators, wide_scratch, 5 * deep + flat + 12 * wide_weights + titles)
