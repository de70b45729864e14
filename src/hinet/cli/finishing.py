"""How a command that trains ends: calibration by validation rows, and what is said of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when a command runs, so that --help stays instant
    from hinet import HiNetClassifier
    from hinet.cli.options import Running


def calibrate(classifier: HiNetClassifier, count: int, risk: float | None, *held_out: Any) -> HiNetError | None:
    """Calibrate by so many rows, those of the fit unless others are given; return why a risk cannot be promised."""
    if count < 2:
        return None if risk is None else HiNetError("one validation row is too few; hold out more")
    try:
        classifier.calibrate(*held_out, risk=risk)
    except HiNetError as error:
        if risk is None:
            raise
        classifier.calibrate(*held_out)
        return error
    return None


def tell_model(classifier: HiNetClassifier, model: Path, seconds: float, running: Running) -> None:
    """Say how good a model is, and where it was saved."""
    from hinet.classifier.model_folder import read_manifest

    judged = classifier.metrics_.get("validation")
    if judged is not None:
        accuracy, f1 = (100 * judged[name] for name in ("accuracy", "hierarchical_f1"))
        running.say(f"validation: accuracy {accuracy:.1f}%, hierarchical F1 {f1:.1f}%")
    if hasattr(classifier, "calibration_"):
        found = classifier.calibration_
        errors = f"{found.error_before:.3f}, after scaling {found.error_after:.3f}"
        running.say(f"calibration error of validation rows {errors}")
        if found.promise is not None:
            running.say(f"--min-confidence calibrated: {found.promise}")
    size = sum(entry["bytes"] for entry in read_manifest(model)["files"].values()) / 1e6
    running.say(f"saved to {model}: {size:,.1f} MB, {seconds:.1f} s in all")
