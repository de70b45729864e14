"""Train the per-parent network on a few texts, and read whole traces with their probabilities."""

import numpy as np
import torch

from hinet import Layers, Taxonomy, Traces
from hinet.data.datasets import tfidf_texts
from hinet.networks import HiNet, SparseBag, SparseRows, Targets, TrainingSettings, marginals, predict_traces, train

paths = [("Food", "Bread"), ("Food", "Milk"), ("Toys", "Ball"), ("Toys", "Doll"), ("Toys",)]
texts = ["dark rye loaf", "fresh cow milk", "round red ball", "doll with a dress", "assorted toys for children"]
taxonomy = Taxonomy.from_paths(paths)
layers = Layers.of(taxonomy)
truth = Traces.encode_paths(layers, paths * 8, steps="names")

torch.manual_seed(0)
train_rows, new_rows = tfidf_texts(texts * 8, ["a red ball", "rye", "toys"])
network = HiNet(SparseBag(train_rows.shape[1], 16), layers, 16)
train(network, train_rows, Targets(truth), TrainingSettings(epochs=15, batch=8, dense_rate=1e-2))

best = predict_traces(network, new_rows, k=2)
for text, paths_found, start in zip(["a red ball", "rye", "toys"], best.paths(), best.row_offsets, strict=False):
    for place, path in enumerate(paths_found):
        print(f"{text:12} {np.exp(best.log_p[start + place]):.2f}  {' / '.join(path)}")

with torch.no_grad():
    found = marginals(network.head.graph, network.option_scores(SparseRows.of(new_rows, 0, 1)))
print("P(Toys | 'a red ball') =", round(float(found.node[taxonomy.position("Toys"), 0]), 2))
