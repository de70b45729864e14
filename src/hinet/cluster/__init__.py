"""Prediction and training on a Ray cluster; needs the extra ``cluster``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.cluster.prediction import SPARK_SCHEMA as SPARK_SCHEMA
    from hinet.cluster.prediction import PredictionJob as PredictionJob
    from hinet.cluster.prediction import Sink as Sink
    from hinet.cluster.prediction import predict_batches as predict_batches
    from hinet.cluster.prediction import predict_rows as predict_rows
    from hinet.cluster.session import Cluster as Cluster
    from hinet.cluster.session import connected as connected
    from hinet.cluster.training import RayRunner as RayRunner
    from hinet.cluster.training import fit_on_cluster as fit_on_cluster
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "prediction": "SPARK_SCHEMA PredictionJob Sink predict_batches predict_rows",
            "session": "Cluster connected",
            "training": "RayRunner fit_on_cluster",
        },
    )
