"""Training in torch: the loop, and its optimiser for row-sparse gradients."""

from hinet.training.loop import TrainingSettings, train
from hinet.training.predict import predict_traces
from hinet.training.row_adagrad import RowAdagrad

__all__ = [
    "RowAdagrad",
    "TrainingSettings",
    "predict_traces",
    "train",
]
