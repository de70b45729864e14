"""Options of training, and of the rows for validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from hinet.cli.options import option, shared_options
from hinet.errors import HiNetError

_TRAINING, _VALIDATION = "Training", "Validation"


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; None leaves the choice to the engine."""

    epochs: int | None
    width: int | None
    patience: int | None
    memory_limit: float | None
    half: bool
    resume: bool
    checkpoint_every: float
    keep_examples: bool

    def __post_init__(self) -> None:
        from hinet.classifier.parameters import RULES

        RULES["memory_limit"].validate("--memory-limit", self.memory_limit)
        RULES["checkpoint_every"].validate("--checkpoint-every", self.checkpoint_every)


def _training(
    epochs: Annotated[
        int | None, option("--epochs", "Training epochs (default: chosen from the number of rows).", _TRAINING, least=1)
    ] = None,
    width: Annotated[
        int | None, option("--width", "Units of the deep expert (default: chosen by the engine).", _TRAINING, least=1)
    ] = None,
    patience: Annotated[
        int | None,
        option(
            "--patience",
            "Stop after this many epochs without a better validation score (default: never).",
            _TRAINING,
            least=1,
        ),
    ] = None,
    memory_limit: Annotated[
        float | None, option("--memory-limit", "Gigabytes of memory for training (default: all).", _TRAINING)
    ] = None,
    half: Annotated[
        bool, option("--half", "Save wide weights in half precision; others are in 8 bits.", _TRAINING)
    ] = False,
    resume: Annotated[
        bool, option("--resume", "Continue from the checkpoints of an interrupted run.", _TRAINING)
    ] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option("--checkpoint-every", min=0, help="Seconds between checkpoints.", rich_help_panel=_TRAINING),
    ] = 5.0,
    keep_examples: Annotated[
        bool,
        typer.Option(
            "--keep-examples/--no-keep-examples",
            help="Keep some training rows, as features, in the model, for 'update' when nodes move.",
            rich_help_panel=_TRAINING,
        ),
    ] = True,
) -> TrainingOptions:
    return TrainingOptions(epochs, width, patience, memory_limit, half, resume, checkpoint_every, keep_examples)


training_options = shared_options(_training, "training")


@dataclass(frozen=True)
class ValidationOptions:
    """Which rows are for validation: files, a condition on the data, or a share of it; and the allowed risk."""

    files: list[str]
    where: str | None
    share: float | None
    risk: float | None

    def __post_init__(self) -> None:
        if sum((bool(self.files), self.where is not None, self.share is not None)) > 1:
            raise HiNetError("--valid, --valid-where and --valid-share all define the validation rows; give one")

    def require(self, option: str, value: object) -> None:
        """Raise HiNetError if an option needs validation rows and there are none."""
        if value is not None and not self.files and self.where is None and self.share is None:
            raise HiNetError(f"{option} needs validation rows; give --valid, --valid-where or --valid-share")


def _validation(
    valid: Annotated[
        list[str] | None,
        option("--valid", "File of validation rows, to weight the experts and calibrate; repeatable.", _VALIDATION),
    ] = None,
    valid_where: Annotated[
        str | None, option("--valid-where", "COLUMN=VALUE: use such rows of the data for validation.", _VALIDATION)
    ] = None,
    valid_share: Annotated[
        float | None,
        option(
            "--valid-share",
            "Share of the rows to hold out for validation, such as 0.1, chosen at random.",
            _VALIDATION,
        ),
    ] = None,
    risk: Annotated[
        float | None,
        option(
            "--risk",
            "Share of wrong answers to allow, such as 0.05, for predict --min-confidence calibrated.",
            _VALIDATION,
        ),
    ] = None,
) -> ValidationOptions:
    return ValidationOptions(valid or [], valid_where, valid_share, risk)


validation_options = shared_options(_validation, "validation")
