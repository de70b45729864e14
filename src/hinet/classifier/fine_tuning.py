"""Training an encoder with the head: texts, labels and parameters of a classifier to its fitted state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.examples import Examples, bytes_to_keep
from hinet.classifier.fitted import Fitted
from hinet.classifier.fitting import EncodedRows, engine_settings, validation_rows
from hinet.classifier.held_out import HeldOut
from hinet.classifier.labels import LabelCodec, Truth
from hinet.data import Traces
from hinet.data.text.text_input import as_arrow
from hinet.encoders.meaning import TunedInput
from hinet.errors import HiNetError
from hinet.progress import Progress


def check_tunable(parameters: Mapping[str, Any], kind: str) -> None:
    """Raise HiNetError if an encoder cannot be fine-tuned with these parameters on such rows."""
    if kind != "text":
        raise HiNetError("`encoder` reads texts, and the rows are numbers; leave it out")
    for name in ("network", "vectors", "text"):
        if parameters[name] is not None:
            raise HiNetError(f"`{name}` and a fine-tuned `encoder` exclude each other; leave one of them out")


def fit_tuned(
    texts: Any,
    codec: LabelCodec,
    traces: Traces,
    weights: NDArray[np.float64] | None,
    valid: tuple[Any, Truth] | None,
    parameters: Mapping[str, Any],
    progress: Progress,
) -> Fitted:
    """Return the state of a classifier whose encoder was fine-tuned on texts; ``valid`` are texts and their labels."""
    features = TunedInput.of(parameters["encoder"])
    from hinet.networks.fine_tuning import TokenExamples, TuningSettings, fine_tune
    from hinet.networks.predictor import NetworkPredictor

    settings, encoder = engine_settings(parameters), features.encoder
    if settings.dropout is not None:
        encoder.set_dropout(settings.dropout)
    usual = TuningSettings()
    tuning = TuningSettings(settings.deep_epochs or usual.epochs, patience=settings.patience, seed=settings.seed)
    rows = encoder.tokens(texts)
    held = None if valid is None else validation_rows(codec, HeldOut(encoder.tokens(valid[0]), valid[1]))
    network, history = fine_tune(
        encoder,
        TokenExamples(rows, traces, weights),
        tuning,
        prior_strength=settings.prior_strength,
        valid=None if held is None else TokenExamples(held.rows, held.traces),
        device=parameters["device"],
        threads=settings.threads,
        checkpoint=parameters["checkpoint"],
        checkpoint_every=parameters["checkpoint_every"],
        progress=progress,
    )
    predictor = NetworkPredictor(network.eval(), settings.threads, history)
    fitted = Fitted(features, codec, predictor, history, EncodedRows(rows.ids, traces).fingerprint())
    if not parameters["keep_examples"]:
        return fitted
    return _keeping(fitted, features.count, texts, traces, settings.seed)


def _keeping(fitted: Fitted, width: int, texts: Any, traces: Traces, seed: int) -> Fitted:
    """Return the same with some rows kept as examples; only these are embedded."""
    unread = Examples.of(np.broadcast_to(np.float32(0), (len(traces), width)), traces)
    chosen = unread.choice(bytes_to_keep(fitted.predictor.nbytes), seed)
    rows = fitted.rows(as_arrow(texts).take(pa.array(chosen)))
    return replace(fitted, examples=replace(unread.take(chosen), rows=rows).rounded())
