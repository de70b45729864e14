"""Figures for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """What the service counts; no label holds anything that a client made up."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("hinet_requests", "Requests answered.", ["endpoint", "status"], registry=registry)
        self.seconds = Histogram(
            "hinet_request_seconds", "Time from the head of a request to the end of its answer.", ["endpoint"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.running = Gauge("hinet_running_requests", "Requests at work.", registry=registry)
        self.texts = Counter("hinet_texts", "Texts and rows classified.", ["model"], registry=registry)
        self.batches = Histogram(
            "hinet_batch_requests", "Requests that were answered by one search.", buckets=SIZES, registry=registry
        )
        self.loads = Counter(
            "hinet_model_loads", "Models taken up or refused.", ["model", "outcome"], registry=registry
        )
        self.feedback = Counter("hinet_feedback", "Feedback kept.", ["model", "verdict"], registry=registry)
        self._requests: dict[tuple[str, int], Counter] = {}
        self._seconds: dict[str, Histogram] = {}

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        key = endpoint, status
        if key not in self._requests:
            self._requests[key] = self.requests.labels(endpoint, str(status))
            self._seconds[endpoint] = self.seconds.labels(endpoint)
        self._requests[key].inc()
        self._seconds[endpoint].observe(seconds)

    def text(self) -> bytes:
        """Return all figures in the format of Prometheus."""
        return generate_latest(self.registry)
