"""The evaluation of a saved model, kept beside it: plain JSON that names the manifest it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hinet.classifier.model_folder import EVALUATION, MAX_MANIFEST_BYTES
from hinet.errors import FileError
from hinet.files import read_bounded, write_bytes


def keep_evaluation(folder: Path, digest: str, figures: Mapping[str, Any]) -> None:
    """Write the figures of the model whose manifest has this digest; they replace older ones."""
    values = {"model": digest, "evaluation": figures}
    write_bytes(folder / EVALUATION, json.dumps(values, indent=1, ensure_ascii=False).encode())


def read_evaluation(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return the figures that were kept for the model whose manifest has this digest, or None.

    Raises
    ------
    FileError
        If the file cannot be read.
    """
    path = folder / EVALUATION
    try:
        values = json.loads(read_bounded(path, MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(path, f"the evaluation cannot be read ({error}); evaluate the model again") from None
    if not isinstance(values, dict) or values.get("model") != digest:  # that of another model
        return None
    return dict(values["evaluation"])
