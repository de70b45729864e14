"""Held-out rows and what a classifier learns from them: temperature, slope, trust, and a threshold that bounds risk.

Trust is how far the model relies on a text with unknown words; some rows are made foreign to learn it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.answers import deepest_confident
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import Features, FrameInput, TextInput, count_of, text_column
from hinet.classifier.labels import Truth
from hinet.classifier.predicted_sets import label_candidates
from hinet.classifier.rows import TitleRows
from hinet.data import Traces
from hinet.data.frames import as_table
from hinet.data.text.text_input import as_arrow, join_words, word_pattern
from hinet.engine import FoundNodes, Targets
from hinet.engine.model.fused import Trust
from hinet.engine.model.groups import Groups
from hinet.engine.search.corrections import SURE, TraceLogits, cells_of, map_log_odds, rescale
from hinet.engine.training.target_kernels import mixed_cost
from hinet.errors import HiNetError, counted
from hinet.evaluation.risk import CERTAINTY, THRESHOLDS, AnswerCounts, Calibration, RiskBound, find_threshold
from hinet.metrics import expected_calibration_error, log_loss
from hinet.ragged import evenly_spaced

MAX_FOREIGN_ROWS = 2_000
MIN_HELD_OUT_ROWS = 200  # fewer do not teach trust; training rows do
USUAL = Trust(rate=2.5, power=4.0)  # between the values learned on ICD-10-CM and NAICS
# Pull of trust towards the previous or usual one, and of factor and slope towards 1, with the weight of one row.
PULL = 1.0
RATES, POWERS = (1e-3, 50.0), (1.0, 10.0)
MIN_ROWS = 100  # minimum rows that determine a scale
MAX_TEMPERATURE_ROWS = 10_000
LOG_STEP = 0.5
LOG_FACTORS = tuple(np.arange(-4, 5) * LOG_STEP)  # log factors of the logits, tried before the best is refined
MIN_LOG_SLOPE = -2.0
MAX_OFFSET = 10.0  # maximum offset of log odds
FIRST_WEIGHT = 2.0  # weight of the most probable labels of all rows, relative to all other labels together
MAX_PATH_CELLS = 20_000_000  # maximum logits and options on the paths to labels in memory: about 1 GB


@dataclass(frozen=True, eq=False)
class ForeignRows:
    """Rows with foreign words; ``index`` has the number of the row that each was made of."""

    rows: Any
    index: NDArray[np.int64]

    @classmethod
    def of(cls, fitted: Fitted, X: Any, seed: int) -> ForeignRows | None:
        """Return some rows of checked input, made foreign; None if the model is not one of texts in a tree."""
        features = fitted.features
        has_text = isinstance(features, TextInput) or (isinstance(features, FrameInput) and features.text is not None)
        if not (has_text and fitted.predictor.can_scale_odds):
            return None
        assert isinstance(features, TextInput | FrameInput)
        order = np.random.default_rng(seed).permutation(count_of(X))
        index = np.sort(order[:MAX_FOREIGN_ROWS]).astype(np.int64)
        return cls(features.foreign_rows(take_inputs(features, X, index), fitted.predictor.threads, seed), index)

    def made_of(self, rows: NDArray[np.int64]) -> ForeignRows:
        """Return the rows that were made of ``rows``, with an ``index`` into these."""
        position = np.full(max(rows.max(initial=-1), self.index.max(initial=-1)) + 1, -1)
        position[rows] = np.arange(len(rows))
        kept = np.flatnonzero(position[self.index] >= 0)
        return ForeignRows(self.rows[kept], position[self.index[kept]])


@dataclass(frozen=True)
class HeldOut:
    """Validation rows as the model reads them, with all their labels, even those that it cannot predict."""

    rows: Any
    truth: Truth
    foreign: ForeignRows | None = None  # made of some of the rows

    def take(self, rows: NDArray[np.int64]) -> HeldOut:
        """Return the chosen rows."""
        foreign = None if self.foreign is None else self.foreign.made_of(rows)
        return HeldOut(self.rows[rows], self.truth.take(rows), foreign)

    def halves(self) -> tuple[HeldOut, HeldOut]:
        """Return every other row, and the rest."""
        number = np.arange(len(self.truth))
        return self.take(number[::2]), self.take(number[1::2])


def held_out_rows(fitted: Fitted, X: Any, truth: Truth, seed: int) -> HeldOut:
    """Return checked input as held-out rows."""
    return HeldOut(fitted.rows(X), truth, ForeignRows.of(fitted, X, seed))


def kept_rows(fitted: Fitted) -> HeldOut | None:
    """Return the validation rows that the model keeps, if it keeps any."""
    kept = fitted.held_out
    return None if kept is None else HeldOut(kept.rows, kept.truth(fitted.codec.taxonomy))


def take_inputs(features: Features, X: Any, rows: NDArray[np.int64]) -> Any:
    """Return the chosen rows of checked input."""
    values = as_table(X) if isinstance(features, FrameInput) else as_arrow(text_column(X))
    return values.take(pa.array(rows))


def with_learned_trust(
    fitted: Fitted, X: Any, traces: Traces, held_out: HeldOut | None, valid: Any, seed: int
) -> tuple[Fitted, HeldOut | None]:
    """Return a newly trained classifier with learned trust, and its held-out rows with foreign rows made of them.

    Trust is learned from the held-out rows if there are enough; ``valid`` has their checked input. Otherwise it is
    learned from the training rows ``X`` with labels ``traces``.
    """
    if held_out is not None:
        held_out = replace(held_out, foreign=ForeignRows.of(fitted, valid, seed))
        if held_out.foreign is not None and len(held_out.truth) >= MIN_HELD_OUT_ROWS:
            return trust_from_held_out_rows(fitted, held_out.rows, held_out.truth, held_out.foreign), held_out
    return trust_from_training_rows(fitted, X, traces, seed), held_out


def trust_from_training_rows(fitted: Fitted, X: Any, traces: Traces, seed: int) -> Fitted:
    """Return the classifier with trust learned from some of its training rows."""
    foreign = ForeignRows.of(fitted, X, seed)
    if foreign is None:
        return fitted
    rows = fitted.rows(take_inputs(fitted.features, X, foreign.index))
    nodes = traces.end_nodes.astype(np.int64)
    truth = Truth(fitted.codec.taxonomy, traces.row_offsets, nodes, np.ones(len(nodes), bool)).take(foreign.index)
    return fitted.with_trust(learned_trust(fitted, [(rows, truth), (foreign.rows, truth)]))


def trust_from_held_out_rows(fitted: Fitted, rows: Any, truth: Truth, foreign: ForeignRows) -> Fitted:
    """Return the classifier with trust learned from held-out rows and the foreign rows made of them."""
    if not len(foreign.index):
        return fitted
    return fitted.with_trust(learned_trust(fitted, [(rows, truth), (foreign.rows, truth.take(foreign.index))]))


def learned_trust(fitted: Fitted, parts: Sequence[tuple[Any, Truth]]) -> Trust:
    """Return the trust that minimises the log loss of whether first steps of answers are right, averaged over parts.

    The first step shows whether a text was understood at all. Errors in deeper steps have other causes as well.
    """
    from scipy.optimize import minimize  # only here: it takes long to import

    before = fitted.predictor.trust or USUAL
    plain = fitted.with_trust(None)
    steps = [_FirstSteps.of(plain, *part) for part in parts]
    rows = sum(len(part.p) for part in steps)
    bounds = np.log([RATES, POWERS])
    start = np.clip(np.log(before), *bounds.T)

    def loss(logs: NDArray[np.float64]) -> float:
        trust = Trust(*np.exp(logs).tolist())
        return float(sum(part.loss(trust) for part in steps) + PULL * ((logs - start) ** 2).sum() / max(rows, 1))

    best = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 5e-3, "fatol": 1e-6})
    return Trust(*np.exp(best.x).tolist())


@dataclass(frozen=True, eq=False)
class _FirstSteps:
    """The first step of each answer at which labels differ."""

    p: NDArray[np.float64]  # (n,)
    share: NDArray[np.float64]  # (n,) share of all labels that are below the node
    right: NDArray[np.bool_]  # (n,)
    unknown: NDArray[np.float64]  # (n,)

    @classmethod
    def of(cls, fitted: Fitted, rows: Any, truth: Truth) -> _FirstSteps:
        answers = fitted.predictor.traces(rows)
        nodes = answers.traces.layers.node[answers.traces.neurons].astype(np.int64)
        owner = np.repeat(np.arange(len(truth)), np.diff(answers.traces.offsets))
        share = fitted.predictor.label_shares[nodes]
        differ = np.flatnonzero(share < 1)
        row, first = np.unique(owner[differ], return_index=True)
        step = differ[first]
        right = truth.take(row).are_right(nodes[step], or_above=True)
        return cls(np.exp(answers.log_p[step]), share[step], right, rows.unknown[row].astype(np.float64))

    def loss(self, trust: Trust) -> float:
        """Return the mean log loss of whether these steps are right."""
        if not len(self.p):
            return 0.0
        row_trust = trust.of(self.unknown)
        p = np.clip(row_trust * self.p + (1 - row_trust) * self.share, 1e-6, 1 - 1e-6)
        return float(-np.log(np.where(self.right, p, 1 - p)).mean())


class Scale(NamedTuple):
    """Correction of probabilities: a factor of all logits, slope and offset of log odds, and trust.

    The slope is that of best traces or, with several labels per row, of all labels; only these have an offset.
    """

    factor: float
    slope: float = 1.0
    offset: float = 0.0
    trust: Trust | None = None  # None keeps the trust of the model

    def of(self, fitted: Fitted) -> Fitted:
        """Return a classifier with corrected probabilities."""
        scaled = fitted.scaled(self.factor, self.slope, self.offset)
        return scaled if self.trust is None else scaled.with_trust(self.trust)


def calibrate_fitted(
    fitted: Fitted,
    rows: Any,
    truth: Truth,
    risk: float | None,
    certainty: float,
    *,
    temperature: float,
    seed: int,
    foreign: ForeignRows | None = None,
) -> tuple[Fitted, Calibration]:
    """Return the classifier with calibrated probabilities, and the result of the calibration.

    ``temperature`` is the previous divisor of the logits. All rows determine the scale. With a risk, one half
    determines the scale and the other half the risk bound; if there are too few rows for both, all rows determine the
    bound. The seed assigns rows to halves, so that their order does not matter. ``foreign`` has some of the rows, made
    foreign, which determine the trust in texts with unknown words.

    Raises
    ------
    HiNetError
        If there are fewer than 100 rows and no risk, or too few for the risk.
    """
    if len(truth) < (MIN_ROWS if risk is None else 2):
        raise HiNetError(
            f"{counted(len(truth), 'held-out row is/held-out rows are')} too few to calibrate; give at least {MIN_ROWS}"
        )
    order = np.random.default_rng(seed).permutation(len(truth))
    held = HeldOut(rows, truth, foreign).take(order)
    first, second = held.halves()
    if risk is None:
        choice, bounds = _choose_scale(fitted, held), None
    elif len(first.truth) >= MIN_ROWS:
        choice, bounds = _choose_scale(fitted, first), second
    else:
        error = calibration_error([first_answers(fitted, rows, truth)])
        choice, bounds = ScaleChoice(_present_scale(fitted), error, error, False), held
    scale = choice.scale
    scaled = scale.of(fitted)
    risk_bound = None
    if bounds is not None and risk is not None:
        risk_bound = risk_bound_for(scaled, bounds.rows, bounds.truth, risk, certainty)
    calibration = Calibration(
        temperature / scale.factor, choice.error_before, choice.error_after, len(truth), risk_bound, scale.slope,
        scale.offset, choice.scaled,
    )  # fmt: skip
    return scaled, calibration


class ScaleChoice(NamedTuple):
    """A scale, the calibration errors before and after it, and whether it changes anything."""

    scale: Scale
    error_before: float
    error_after: float
    scaled: bool


def _choose_scale(fitted: Fitted, held: HeldOut) -> ScaleChoice:
    """Return the scale for held-out rows, or the present one if scales of one half do not improve the other half."""
    halves = held.halves()
    scales = [scale_for(fitted, half) for half in reversed(halves)]
    before = [first_answers(fitted, half.rows, half.truth) for half in halves]
    after = [first_answers(scale.of(fitted), half.rows, half.truth) for scale, half in zip(scales, halves, strict=True)]
    errors = calibration_error(before), calibration_error(after)
    if _loss_of_answers(after) < _loss_of_answers(before) and errors[1] <= errors[0]:
        return ScaleChoice(scale_for(fitted, held), *errors, True)
    return ScaleChoice(_present_scale(fitted), errors[0], errors[0], False)


def _present_scale(fitted: Fitted) -> Scale:
    """Return the scale that leaves probabilities as they are."""
    return Scale(1.0, fitted.predictor.odds_scale, fitted.predictor.odds_offset)


def _loss_of_answers(parts: list[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> float:
    """Return the log loss of the answers of several parts together being right."""
    confidence, right = (np.concatenate(values) for values in zip(*parts, strict=True))
    return log_loss(np.where(right, confidence, 1 - confidence))


def scale_for(fitted: Fitted, held: HeldOut) -> Scale:
    """Return the scale with the smallest log loss of correct answers: first the factor, then the slope, then trust."""
    scale = _factor_and_slope(fitted, held.rows, held.truth)
    if held.foreign is None:
        return scale
    trusting = trust_from_held_out_rows(scale.of(fitted), held.rows, held.truth, held.foreign)
    return scale._replace(trust=trusting.predictor.trust)


def _factor_and_slope(fitted: Fitted, rows: Any, truth: Truth) -> Scale:
    """Return the factor, and then the slope with the trust of the model.

    The factor is found without trust, as it can change answers and trust should not. Only some predictors have a slope.
    If both were optimised together, the factor would grow, which costs correct answers and gains nothing on other rows.

    The answers are those of the unscaled model, and only their probabilities change with the scale. Otherwise the loss
    would not be proper, as answers could be replaced by others that are certainly wrong.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    chosen = evenly_spaced(len(truth), MAX_TEMPERATURE_ROWS)
    rows, truth = rows[chosen], truth.take(chosen)
    if fitted.codec.sets is not None:
        return _scale_for_sets(fitted, rows, truth)
    nodes = _answered(fitted, rows).nodes
    trace_logits, kept = _trace_logits(fitted, rows, nodes)
    right = truth.are_right(nodes)[kept]
    trust, share = fitted.predictor.trust_in(rows[kept]), fitted.predictor.label_shares[-1]

    def loss(p: NDArray[np.float64], log_scale: float) -> float:
        return log_loss(np.where(right, p, 1 - p)) + PULL * log_scale**2 / len(right)

    def probability(factor: float) -> NDArray[np.float64]:
        p: NDArray[np.float64] = np.exp(trace_logits.log_p(factor)).clip(0, 1)
        return p

    def of_factor(log_factor: float) -> float:
        return loss(probability(float(np.exp(log_factor))), log_factor)

    best = min(LOG_FACTORS, key=of_factor)
    around = (best - LOG_STEP, best + LOG_STEP)
    factor = float(np.exp(minimize_scalar(of_factor, bounds=around, method="bounded", options={"xatol": 5e-3}).x))
    if not fitted.predictor.can_scale_odds:
        return Scale(factor)
    p = probability(factor)

    def of_slope(log_slope: float) -> float:
        return loss(trust * rescale(p, float(np.exp(log_slope))) + (1 - trust) * share, log_slope)

    slope = minimize_scalar(of_slope, bounds=(MIN_LOG_SLOPE, 0.0), method="bounded", options={"xatol": 5e-3})
    return Scale(factor, float(np.exp(slope.x)) if slope.fun < of_slope(0.0) else 1.0)


def _scale_for_sets(fitted: Fitted, rows: Any, truth: Truth) -> Scale:
    """Return the factor with the smallest cost of the sets of rows, then slope and offset of their likely labels.

    The factor scales the probability of a node given its parent. Products of many such probabilities can still be too
    low or too high, which slope and offset correct.
    """
    predictable = np.flatnonzero(fitted.codec.predictable(truth))
    if not len(predictable):
        return Scale(1.0)
    factor = _factor_for_sets(fitted, rows[predictable], truth.take(predictable))
    likely = label_candidates(fitted.search.scaled(factor, 1.0), rows, truth)
    others = int(np.count_nonzero(~likely.best))
    weight = np.where(likely.best, FIRST_WEIGHT * max(others, 1) / max(int(np.count_nonzero(likely.best)), 1), 1.0)
    return Scale(factor, *_odds_map(np.log(likely.probability), likely.right, weight / max(weight.mean(), SURE)))


def _factor_for_sets(fitted: Fitted, rows: Any, truth: Truth) -> float:
    from scipy.optimize import minimize_scalar

    targets = Targets.of(fitted.codec.traces_of(truth))
    groups = Groups.of(targets.layers)
    most = targets.arrays.max_sizes(groups)
    logits = fitted.predictor.logits_along(rows, targets).astype(np.float32)[:, None]

    def loss(log_factor: float) -> float:
        cost, _ = mixed_cost(targets.arrays, groups, most, logits, np.exp([log_factor]))
        return float(cost + PULL * log_factor**2) / len(truth)

    best = min(LOG_FACTORS, key=loss)
    around = (best - LOG_STEP, best + LOG_STEP)
    return float(np.exp(minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 5e-3}).x))


def _odds_map(log_p: NDArray[np.float64], right: NDArray[np.bool_], weight: NDArray[np.float64]) -> tuple[float, float]:
    """Return the slope and offset of the log odds of labels with the smallest weighted log loss."""
    from scipy.optimize import minimize

    def loss(parameters: NDArray[np.float64]) -> float:
        log_slope, offset = parameters
        mapped = map_log_odds(log_p, float(np.exp(log_slope)), float(offset))
        wrong = np.log(-np.expm1(np.minimum(mapped, -SURE)))
        return float(PULL * parameters @ parameters - weight @ np.where(right, mapped, wrong)) / max(len(right), 1)

    bounds = [(MIN_LOG_SLOPE, -MIN_LOG_SLOPE), (-MAX_OFFSET, MAX_OFFSET)]
    log_slope, offset = minimize(loss, np.zeros(2), method="L-BFGS-B", bounds=bounds).x
    return float(np.exp(log_slope)), float(offset)


def _trace_logits(fitted: Fitted, rows: Any, nodes: NDArray[np.int64]) -> tuple[TraceLogits, NDArray[np.int64]]:
    """Return the logits on the paths to the labels of rows, and the rows used: as many as memory allows."""
    targets = Targets.of_labels(fitted.codec.layers, nodes, np.arange(len(nodes) + 1))
    kept = evenly_spaced(len(nodes), int(MAX_PATH_CELLS / max(cells_of(targets).mean(), 1)))
    targets, rows = targets.take(kept), rows[kept]
    return TraceLogits.of(targets, fitted.predictor.logits_along(rows, targets)), kept


def _answered(fitted: Fitted, rows: Any) -> FoundNodes:
    """Return the predicted label of every row: in a tree that of the best trace, in a DAG the most probable one."""
    return fitted.predictor.decode(rows, "map" if fitted.codec.taxonomy.is_tree else "label")


def first_answers(fitted: Fitted, rows: Any, truth: Truth) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the probabilities of the predicted labels, and whether they are correct."""
    answers = _answered(fitted, rows)
    return np.minimum(answers.probability, 1), truth.are_right(answers.nodes)


def calibration_error(parts: list[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> float:
    """Return the expected calibration error of the answers of several parts together."""
    confidence, right = (np.concatenate(values) for values in zip(*parts, strict=True))
    return float(expected_calibration_error(confidence, right))


def risk_bound_for(fitted: Fitted, rows: Any, truth: Truth, risk: float, certainty: float) -> RiskBound:
    """Return the threshold at which at most a share ``risk`` of the answers is wrong."""
    labels = fitted.predictor.decode(rows).nodes
    counts = [astuple(answers_at(fitted, rows, truth, labels, threshold)) for threshold in THRESHOLDS]
    _, answered, wrong, full = np.array(counts).T
    return find_threshold(THRESHOLDS, answered, wrong, full, len(truth), risk=risk, certainty=certainty)


def answers_at(fitted: Fitted, rows: Any, truth: Truth, labels: NDArray[np.int64], threshold: float) -> AnswerCounts:
    """Return the counts of answers at a threshold; ``labels`` are the answers without one."""
    answers = deepest_confident(fitted, rows, threshold)
    answered = answers.probability >= threshold
    right = truth.are_right(answers.nodes, or_above=True)
    full = (answers.nodes == labels) | fitted.codec.taxonomy.leaves[answers.nodes]
    return AnswerCounts(
        len(truth), *(int(np.count_nonzero(part)) for part in (answered, answered & ~right, answered & full))
    )


MAX_TITLES = 1_000  # maximum number of titles that texts are made of
MIN_TITLE_TEXTS = 400  # few titles are used several times
KEPT_SHARE = 0.5  # probability to keep a word
MAX_ADDED = 2  # maximum number of words that are added to a text


def calibrated_on_titles(fitted: Fitted, titles: TitleRows, seed: int) -> Fitted:
    """Return a classifier with probabilities scaled by its answers to texts made of titles, if that improves them."""
    # Titles themselves are training rows, which a model answers with far more confidence than texts of users.
    nodes, first = np.unique(titles.nodes, return_index=True)
    is_label = np.isin(nodes, fitted.codec.label_nodes)
    nodes, first = nodes[is_label], first[is_label]  # the first text of a node is its title, if it has one
    chosen = np.random.default_rng(seed).permutation(len(nodes))[:MAX_TITLES]
    chosen = np.tile(chosen, -(-MIN_TITLE_TEXTS // len(chosen)))
    texts = practice_texts([titles.texts[row] for row in first[chosen].tolist()], seed)
    truth = Truth(fitted.codec.taxonomy, np.arange(len(chosen) + 1), nodes[chosen], np.ones(len(chosen), bool))
    held = held_out_rows(fitted, texts, truth, seed)
    return calibrate_fitted(
        fitted, held.rows, held.truth, None, CERTAINTY, temperature=1.0, seed=seed, foreign=held.foreign
    )[0]


def practice_texts(titles: Sequence[str], seed: int) -> list[str]:
    """Return each title with about half of its words, and up to two other words.

    An added word is, with equal probability, a word of any title, or a new word: the first half of one word and the
    second half of another.

    >>> practice_texts(["rye bread", "white bread", "red wine"], seed=2)
    ['rye bread whiite', 'bread rye', 'red']
    """
    rng = np.random.default_rng(seed)
    split = [word_pattern(title).findall(title.lower()) for title in titles]
    pool = [word for words in split for word in words] or [""]

    def draw() -> str:
        word: str = pool[int(rng.integers(len(pool)))]
        return word

    def added() -> str:
        word = draw()
        if rng.integers(2):
            return word
        other = draw()
        return word[: (len(word) + 1) // 2] + other[len(other) // 2 :]

    texts = []
    for words in split:
        kept = rng.random(len(words)) < KEPT_SHARE
        if len(words) and not kept.any():
            kept[rng.integers(len(words))] = True
        text = [word for word, is_kept in zip(words, kept.tolist(), strict=True) if is_kept]
        for _ in range(int(rng.integers(MAX_ADDED + 1))):
            text.insert(int(rng.integers(len(text) + 1)), added())
        texts.append(join_words(text))
    return texts
