"""Predictions for engines that hand out batches of pandas, such as the pandas UDFs of Spark; imports none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from hinet.classifier.answers import PredictionOptions
from hinet.classifier.loaded import LoadedModel, load_model
from hinet.compiled import compile_from_now_on

SPARK_SCHEMA = "label string, trace array<string>, probability double"  # of the columns by default, for Spark


@lru_cache(maxsize=4)
def _loaded(model: str, threads: int, encoder: str | None) -> LoadedModel:
    """Load a model once in a process, however many batches and partitions it answers."""
    compile_from_now_on()  # so that no answer depends on how many rows came before
    return load_model(model, threads, encoder=encoder)


def predict_batches(
    model: str | Path,
    batches: Iterable[Any],
    options: PredictionOptions | None = None,
    threads: int = 1,
    encoder: str | Path | None = None,
) -> Iterator[Any]:
    """Yield a pandas DataFrame of predictions for every Series of texts: the columns that ``hinet predict`` writes.

    ``encoder`` is where the encoder of the model is, if it moved since training.
    """
    import pandas as pd

    table = _loaded(str(model), threads, None if encoder is None else str(encoder)).table(
        options or PredictionOptions()
    )
    for texts in batches:
        filled = ["" if text is None or text != text else text for text in texts.tolist()]
        cells = table.columns(filled)
        yield pd.DataFrame({name: cells[name] for name in table.kinds})
