"""Test the paper's claim about dense hierarchies: a fully connected layered DAG has ``n^h`` traces, ``h n^2`` edges.

    python benchmarks/dense_hierarchy.py

Rows are synthetic: a trace is drawn from a Markov chain over the layers, and the row concatenates a noisy vector per
node. The Bayes rate is that of the best trace under the true model, found by Viterbi. The networks never see that
model. The Flatten Network would need one weight row per trace; its size is computed without building it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from measure import RESULTS, Stopwatch, answer_if_asked, run_alone, save
from numpy.typing import NDArray

from hinet import Layers, Taxonomy, Traces
from hinet.metrics import accuracy
from hinet.networks import HeadSettings, HiNet, Targets, TrainingSettings, paper, predict_traces, train
from hinet.networks.models import count_output_parameters

LOOK, HIDDEN = 32, 256  # numbers per node; rectified units of the feature layer
TRAIN, TEST = 400_000, 2_000
EPOCHS = {"hinet": 4, "paper": 2}
NOISE, PEAK = 0.2, 0.6  # standard deviation of a row; probability of the likeliest step from each node


def dense_layers(n: int, h: int) -> Layers:
    edges: list[tuple[str | None, str]] = [(None, f"1.{node}") for node in range(n)]
    edges += [(f"{level}.{a}", f"{level + 1}.{b}") for level in range(1, h) for a in range(n) for b in range(n)]
    return Layers.of(Taxonomy.from_edges(edges), ends=())


class World:
    """The true model: transition probabilities, and the vector of each node."""

    def __init__(self, n: int, h: int, seed: int = 0) -> None:
        self.n, self.h = n, h
        self.random = np.random.default_rng(seed)
        looks = self.random.standard_normal((h, n, LOOK))
        self.looks = looks / np.linalg.norm(looks, axis=2, keepdims=True)
        steps = self.random.random((h - 1, n, n)) ** 8
        steps *= (1 - PEAK) / steps.sum(2, keepdims=True)
        for level in range(h - 1):
            steps[level, np.arange(n), self.random.permutation(n)] += PEAK
        self.steps = steps / steps.sum(2, keepdims=True)

    def draw(self, rows: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return rows of features and their traces."""
        trace = np.empty((rows, self.h), np.int64)
        trace[:, 0] = self.random.integers(self.n, size=rows)
        for level in range(self.h - 1):
            chance = self.steps[level].cumsum(1)[trace[:, level]]
            trace[:, level + 1] = np.minimum((self.random.random((rows, 1)) > chance).sum(1), self.n - 1)
        seen = np.concatenate([self.looks[level][trace[:, level]] for level in range(self.h)], axis=1)
        return (seen + NOISE * self.random.standard_normal(seen.shape)).astype(np.float32), trace

    def bayes(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the best traces under the true model, by Viterbi."""
        looks = rows.reshape(len(rows), self.h, LOOK) / NOISE**2
        best, back = looks[:, 0] @ self.looks[0].T, []  # vectors of a level have equal length: no other term
        for level in range(1, self.h):
            routes = best[:, :, None] + np.log(self.steps[level - 1])  # (rows, above, here)
            back.append(routes.argmax(1))
            best = routes.max(1) + looks[:, level] @ self.looks[level].T
        trace = [best.argmax(1)]
        for above in reversed(back):
            trace.append(above[np.arange(len(rows)), trace[-1]])
        return np.stack(trace[::-1], axis=1)


class WithItself(torch.nn.Module):
    """A feature network that concatenates the row and its hidden units; any module would do."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(features, HIDDEN)
        self.width = features + HIDDEN

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the feature layer, (b, k)."""
        return torch.cat([rows, self.hidden(rows).relu()], dim=1)


def as_traces(layers: Layers, traces: NDArray[np.int64]) -> Traces:
    names = [[f"{level}.{node}" for level, node in enumerate(row, start=1)] for row in traces.tolist()]
    return Traces.encode_paths(layers, names)


def run(n: int, h: int) -> dict[str, Any]:
    layers = dense_layers(n, h)
    world = World(n, h)
    train_rows, train_traces = world.draw(TRAIN)
    test_rows, test_traces = world.draw(TEST)
    truth = as_traces(layers, test_traces)
    targets = Targets(as_traces(layers, train_traces))
    k = h * LOOK + HIDDEN
    results: dict[str, Any] = {"n": n, "h": h, "k": k, "traces": layers.count_traces(), "edges": (h - 1) * n**2}
    flat = layers.count_traces() * (k + 1)
    results["flatten_output_parameters"] = flat
    results["flatten_training_gb"] = round(flat * 4 * 4 / 1e9, 1)  # weights, gradient, two moments
    results["bayes_accuracy"] = float((world.bayes(test_rows) == test_traces).all(1).mean())
    for name, settings in (("hinet", HeadSettings(tied=True)), ("paper", paper())):
        torch.manual_seed(0)
        network = HiNet(WithItself(h * LOOK), layers, k, settings)
        watch = Stopwatch()
        train(
            network,
            train_rows,
            targets,
            TrainingSettings(epochs=EPOCHS[name], batch=256, dense_rate=2e-3),
        )
        results[f"{name}_train_seconds"] = watch.seconds
        watch = Stopwatch()
        predicted = predict_traces(network, test_rows)
        results[f"{name}_rows_per_second"] = round(TEST / watch.seconds)
        results[f"{name}_accuracy"] = round(_whole_trace_accuracy(truth, predicted), 4)
        results[f"{name}_label_accuracy"] = round(accuracy(truth, predicted), 4)
        results[f"{name}_output_parameters"] = count_output_parameters(network)
    return results


def _whole_trace_accuracy(truth: Traces, predicted: Traces) -> float:
    return float((truth.neurons.reshape(TEST, -1) == predicted.neurons.reshape(TEST, -1)).all(1).mean())


CASES = {"n100 h3": lambda: run(100, 3), "n30 h5": lambda: run(30, 5)}


def parameter_curve(n: int, k: int, heights: range) -> dict[str, list[int]]:
    curve: dict[str, list[int]] = {"height": list(heights), "flatten": [], "paper": [], "hinet": []}
    for h in heights:
        curve["flatten"].append(n**h * (k + 1))
        curve["paper"].append(k * n + (h - 1) * n**2 + n)
        curve["hinet"].append(h * k * n + n + (h - 1) * n**2)
    return curve


def plot_parameters(curve: dict[str, list[int]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), constrained_layout=True)
    for name in ("flatten", "paper", "hinet"):
        axes.plot(curve["height"], curve[name], marker="o", label=name)
    axes.set(xlabel="height h", ylabel="parameters of the output layers", yscale="log")
    axes.legend()
    figure.suptitle("Output parameters, n = 100")
    figure.savefig(RESULTS / "dense_hierarchy.png", dpi=130)


def main() -> None:
    answer_if_asked(CASES)
    results: dict[str, Any] = {}
    for case in CASES:
        results[case] = run_alone(__file__, case)
        print(case)
        for name, value in results[case].items():
            print(f"  {name:28} {value:,}")
    results["parameters_n100"] = parameter_curve(100, HIDDEN, range(1, 8))
    plot_parameters(results["parameters_n100"])
    save("dense_hierarchy", results)


if __name__ == "__main__":
    main()
