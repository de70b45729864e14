"""All peers by name, with their candidate settings."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from typing import Any

from peers.embeddings import FineTuned, LinearOnEmbeddings, NearestEmbeddings
from peers.fast_text import FastText
from peers.label_trees import LabelTree, Omikuji
from peers.linear import LinearSVM, LogisticRegression, PerParentNode
from peers.ours import Flatten, HiNet, HiNetWithCharacters, HiNetWithEncoder, HiNetWithMeaning, HiNetWithVectors
from peers.peer import Peer


@dataclass(frozen=True)
class Entry:
    """A peer, its candidate settings, and whether it uses pretrained weights."""

    title: str
    kind: type[Peer]
    choices: tuple[dict[str, Any], ...] = ({},)
    pretrained: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its packages are installed; not all are available everywhere."""
        try:
            self.kind.versions()
        except PackageNotFoundError:
            return False
        return True


OMIKUJI = (1.0, 3.0, 10.0, 30.0)
PARABEL = {"cluster_balanced": True, "cluster_k": 2, "max_depth": 20}
BONSAI = {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3}
FASTTEXT = tuple(
    {"lr": rate, "epoch": epochs, **features}
    for features in ({}, {"minn": 0, "maxn": 0})  # character n-grams on and off
    for rate in (0.5, 1.0)
    for epochs in (25, 50)
)
PEERS: dict[str, Entry] = {
    "hinet": Entry("hinet", HiNet),
    "hinet-quick": Entry("hinet, quick", HiNet, ({"effort": "quick"},)),
    "hinet-characters": Entry("hinet, character n-grams", HiNetWithCharacters),
    "flatten": Entry("Flatten Network", Flatten),
    "svm": Entry("LinearSVC", LinearSVM, tuple({"C": c} for c in (0.3, 1.0, 3.0, 10.0))),
    "logistic": Entry("logistic regression", LogisticRegression, tuple({"C": c} for c in (10.0, 100.0, 1e3))),
    "omikuji-parabel": Entry("Omikuji, Parabel", Omikuji, tuple({**PARABEL, "linear_c": c} for c in OMIKUJI)),
    "omikuji-bonsai": Entry("Omikuji, Bonsai", Omikuji, tuple({**BONSAI, "linear_c": c} for c in OMIKUJI)),
    "fasttext": Entry("fastText, softmax", FastText, tuple({**rate, "loss": "softmax"} for rate in FASTTEXT)),
    "fasttext-hs": Entry(
        "fastText, hierarchical softmax", FastText, tuple({**rate, "loss": "hs"} for rate in FASTTEXT)
    ),
    "hiclass-svm": Entry(
        "HiClass, LinearSVC", PerParentNode, tuple({"local": "svm", "C": c} for c in (0.3, 1.0, 3.0, 10.0))
    ),
    "hiclass-logistic": Entry(
        "HiClass, logistic regression", PerParentNode, tuple({"local": "logistic", "C": c} for c in (10.0, 100.0, 1e3))
    ),
    "napkinxc": Entry(
        "napkinXC, PLT with the tree", LabelTree, tuple({"liblinear_c": c} for c in (3, 10, 30, 100, 300))
    ),
    "hinet-meaning": Entry("hinet with the extra `meaning`", HiNetWithMeaning, pretrained=True),
    "hinet-vectors": Entry("hinet, static vectors", HiNetWithVectors, pretrained=True),
    "hinet-encoder": Entry("hinet, MiniLM", HiNetWithEncoder, pretrained=True),
    "minilm-linear": Entry(
        "MiniLM, linear layer", LinearOnEmbeddings, tuple({"C": c} for c in (10.0, 100.0, 1e3)), pretrained=True
    ),
    "minilm-nearest": Entry(
        "MiniLM, nearest rows", NearestEmbeddings, tuple({"k": k} for k in (1, 5, 15)), pretrained=True
    ),
    "minilm-tuned": Entry("MiniLM, fine-tuned", FineTuned, ({"epochs": 5},), pretrained=True),
}  # fmt: skip
