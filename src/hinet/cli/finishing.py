"""The last steps of commands that train: calibration with validation rows, and a report of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet.errors import HiNetError, counted

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet import HiNetClassifier
    from hinet.cli.options import RunOptions
    from hinet.cli.training_options import TrainingOptions
    from hinet.data.tables import Columns


def report_replaced(model: Path, run: RunOptions) -> None:
    """Warn that training replaces a model with updates, whose rows and corrections are not trained on again."""
    from hinet.classifier.model_folder import MANIFEST, read_manifest, trainings_of, updates_text

    if (model / MANIFEST).is_file() and (updates := trainings_of(read_manifest(model))[1:]):
        run.message(
            f"warning: {model} will be replaced; it was updated {updates_text(updates)}. The new model learns these "
            "rows only if they are among its training rows"
        )


def save_model(classifier: HiNetClassifier, model: Path, columns: Columns, training: TrainingOptions) -> None:
    """Save a trained model with the columns of its rows."""
    from hinet.classifier.saved_model import COLUMNS

    notes = {COLUMNS: columns.to_dict()}
    classifier.save(model, half=training.half, notes=notes, bundle_encoder=training.bundle_encoder)


def calibrate(classifier: HiNetClassifier, count: int, risk: float | None, *held_out: Any) -> HiNetError | None:
    """Calibrate with the validation rows of the fit, or with ``held_out``, if there are enough.

    Returns
    -------
    HiNetError or None
        The reason why the risk cannot be guaranteed, if so.
    """
    from hinet.classifier.calibration import MIN_ROWS

    risk_error = None
    if risk is not None:
        try:
            classifier.calibrate(*held_out, risk=risk)
            return None
        except HiNetError as error:
            risk_error = error
    if count >= MIN_ROWS:
        classifier.calibrate(*held_out)
    return risk_error


def calibration_message(classifier: HiNetClassifier) -> str | None:
    """Describe the calibration, or why there is none; None without validation rows."""
    from hinet.classifier.calibration import MIN_ROWS

    metrics, calibration = classifier.metrics_.get("validation"), getattr(classifier, "calibration_", None)
    if calibration is None:
        if metrics is None:
            return None
        held_out = classifier.fitted_.held_out
        rows = max(metrics["rows"], 0 if held_out is None else len(held_out))
        few = counted(rows, "validation row is/validation rows are")
        return f"{few} too few to calibrate; probabilities stay as trained. Hold out at least {MIN_ROWS} rows"
    error = f"calibration error of {counted(calibration.rows, 'validation row')} {calibration.error_before:.3f}"
    if calibration.scaled:
        return f"{error}, after scaling {calibration.error_after:.3f}"
    if calibration.promise is not None and calibration.rows < 2 * MIN_ROWS:
        return f"{error}; too few rows to scale probabilities as well, which takes {2 * MIN_ROWS}"
    return f"{error}; scaling does not improve it, so probabilities stay as they were"


def report_model(
    classifier: HiNetClassifier, model: Path, seconds: float, run: RunOptions, risk_error: HiNetError | None
) -> None:
    """Print the check of an update, metrics, calibration and folder of a saved model; then raise ``risk_error``."""
    from hinet.classifier.model_folder import read_manifest

    if hasattr(classifier, "update_check_"):
        run.message(str(classifier.update_check_))
    metrics = classifier.metrics_.get("validation")
    if metrics is not None:
        accuracy, f1 = (100 * metrics[name] for name in ("accuracy", "hierarchical_f1"))
        sets = f", micro-F1 of sets {100 * metrics['micro_f1']:.1f}%" if "micro_f1" in metrics else ""
        run.message(f"validation: accuracy {accuracy:.1f}%, hierarchical F1 {f1:.1f}%{sets}")
    calibrated = calibration_message(classifier)
    if calibrated is not None:
        run.message(calibrated)
    if hasattr(classifier, "min_confidence_"):
        run.message(f"--min-confidence calibrated: {classifier.calibration_.promise}")
    size = sum(entry["bytes"] for entry in read_manifest(model)["files"].values()) / 1e6
    run.message(f"saved to {model}: {size:,.1f} MB, {seconds:.1f} s in all")
    if risk_error is not None:
        raise HiNetError(f"the model is saved, but without a threshold for --risk: {risk_error}")
