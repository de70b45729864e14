"""Many rows and long training over the processes of a Ray cluster; needs the extra ``cluster``."""

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.cluster.frames import SPARK_SCHEMA, predict_batches
    from hinet.cluster.prediction import PredictionJob, Sink, predict_rows
    from hinet.cluster.session import Cluster, connected
    from hinet.cluster.training import RayRunner, fit_on_cluster

_HOMES = {
    "Cluster": "hinet.cluster.session",
    "PredictionJob": "hinet.cluster.prediction",
    "RayRunner": "hinet.cluster.training",
    "SPARK_SCHEMA": "hinet.cluster.frames",
    "Sink": "hinet.cluster.prediction",
    "connected": "hinet.cluster.session",
    "fit_on_cluster": "hinet.cluster.training",
    "predict_batches": "hinet.cluster.frames",
    "predict_rows": "hinet.cluster.prediction",
}

__all__ = [
    "SPARK_SCHEMA",
    "Cluster",
    "PredictionJob",
    "RayRunner",
    "Sink",
    "connected",
    "fit_on_cluster",
    "predict_batches",
    "predict_rows",
]

if not TYPE_CHECKING:  # else a checker would take any name for one of these
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
