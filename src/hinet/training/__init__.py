"""Training: the torch loop, its optimiser for row-sparse gradients, and progress as a person can watch it."""

from hinet.training.loop import EpochRecord, TrainingSettings, train
from hinet.training.predict import predict_traces
from hinet.training.progress import LineProgress, Progress, RichProgress, SilentProgress, progress_for_terminal
from hinet.training.row_adagrad import RowAdagrad

__all__ = [
    "EpochRecord",
    "LineProgress",
    "Progress",
    "RichProgress",
    "RowAdagrad",
    "SilentProgress",
    "TrainingSettings",
    "predict_traces",
    "progress_for_terminal",
    "train",
]
