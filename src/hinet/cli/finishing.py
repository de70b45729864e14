"""The end of a command that trains: calibration with validation rows, and a report of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet import HiNetClassifier
    from hinet.cli.options import RunOptions


def calibrate(classifier: HiNetClassifier, count: int, risk: float | None, *held_out: Any) -> HiNetError | None:
    """Calibrate with the validation rows of the fit or with ``held_out``; return why a risk cannot be guaranteed."""
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


def report_model(
    classifier: HiNetClassifier, model: Path, seconds: float, run: RunOptions, risk_error: HiNetError | None
) -> None:
    """Print the metrics and the calibration of a saved model, and where it is; then raise ``risk_error``, if any."""
    from hinet.classifier.model_folder import read_manifest

    metrics = classifier.metrics_.get("validation")
    if metrics is not None:
        accuracy, f1 = (100 * metrics[name] for name in ("accuracy", "hierarchical_f1"))
        sets = f", micro-F1 of sets {100 * metrics['micro_f1']:.1f}%" if "micro_f1" in metrics else ""
        run.message(f"validation: accuracy {accuracy:.1f}%, hierarchical F1 {f1:.1f}%{sets}")
    if hasattr(classifier, "calibration_"):
        calibration = classifier.calibration_
        errors = f"{calibration.error_before:.3f}, after scaling {calibration.error_after:.3f}"
        run.message(f"calibration error of validation rows {errors}")
        if calibration.promise is not None:
            run.message(f"--min-confidence calibrated: {calibration.promise}")
    size = sum(entry["bytes"] for entry in read_manifest(model)["files"].values()) / 1e6
    run.message(f"saved to {model}: {size:,.1f} MB, {seconds:.1f} s in all")
    if risk_error is not None:
        raise HiNetError(f"the model is saved, but without a threshold for --risk: {risk_error}")
