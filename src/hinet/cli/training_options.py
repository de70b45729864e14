"""Options of a training run: how it trains, and which rows it is validated by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from hinet.cli.options import option, takes
from hinet.errors import HiNetError

_TRAINING, _VALIDATION = "Training", "Validation"


@dataclass(frozen=True)
class TrainingChoice:
    """How to train; what is None is left to the engine."""

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

        RULES["memory_limit"].checked("--memory-limit", self.memory_limit)
        RULES["checkpoint_every"].checked("--checkpoint-every", self.checkpoint_every)


def _training(
    epochs: Annotated[int | None, option("--epochs", "By default by the number of rows.", _TRAINING, least=1)] = None,
    width: Annotated[int | None, option("--width", "Units of the deep expert.", _TRAINING, least=1)] = None,
    patience: Annotated[
        int | None, option("--patience", "Stop after so many epochs without gain in validation.", _TRAINING, least=1)
    ] = None,
    memory_limit: Annotated[
        float | None, option("--memory-limit", "Gigabytes that training may take.", _TRAINING)
    ] = None,
    half: Annotated[
        bool, option("--half", "Save wide weights in half precision; others are in 8 bits.", _TRAINING)
    ] = False,
    resume: Annotated[
        bool, option("--resume", "Go on from the checkpoints of a run that was broken off.", _TRAINING)
    ] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option("--checkpoint-every", min=0, help="Seconds between two checkpoints.", rich_help_panel=_TRAINING),
    ] = 5.0,
    keep_examples: Annotated[
        bool,
        typer.Option(
            "--keep-examples/--no-keep-examples",
            help="Keep some rows, as features, in the model: 'update' learns from them where moved nodes belong.",
            rich_help_panel=_TRAINING,
        ),
    ] = True,
) -> TrainingChoice:
    return TrainingChoice(epochs, width, patience, memory_limit, half, resume, checkpoint_every, keep_examples)


trains = takes(_training, "training")


@dataclass(frozen=True)
class ValidationChoice:
    """Which rows are for validation: files, a condition on the data, or a share of it; and a risk to promise."""

    files: list[str]
    where: str | None
    share: float | None
    risk: float | None

    def __post_init__(self) -> None:
        if sum((bool(self.files), self.where is not None, self.share is not None)) > 1:
            raise HiNetError(
                "--valid, --valid-where and --valid-share each say which rows are for validation; give one"
            )

    def require(self, option: str, value: object) -> None:
        """Refuse an option that needs validation rows where there are none."""
        if value is not None and not self.files and self.where is None and self.share is None:
            raise HiNetError(f"{option} needs validation rows; give --valid, --valid-where or --valid-share")


def _validation(
    valid: Annotated[
        list[str] | None,
        option(
            "--valid", "File of validation rows, which decide the mix and calibrate; repeat it for more.", _VALIDATION
        ),
    ] = None,
    valid_where: Annotated[
        str | None, option("--valid-where", "COLUMN=VALUE: rows of the data that are for validation.", _VALIDATION)
    ] = None,
    valid_share: Annotated[
        float | None,
        option(
            "--valid-share",
            "Share of the rows to hold out for validation, at random by the seed, such as 0.1.",
            _VALIDATION,
        ),
    ] = None,
    risk: Annotated[
        float | None,
        option(
            "--risk", "Share of wrong answers to promise; gives --min-confidence calibrated its threshold.", _VALIDATION
        ),
    ] = None,
) -> ValidationChoice:
    return ValidationChoice(valid or [], valid_where, valid_share, risk)


validates = takes(_validation, "validation")
