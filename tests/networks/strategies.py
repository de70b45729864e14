"""Random heads on random taxonomies, and all their traces with scores, by brute force."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

from hinet import Layers
from hinet.networks import HeadSettings, HierarchicalHead, build_head
from tests.strategies import Path, all_scored, layered

FAMILY = [
    HeadSettings(wiring, normalisation, cost, mask)  # type: ignore[arg-type]
    for wiring, normalisation, cost, mask in itertools.product(
        ("chain", "skip"), ("level", "parent"), ("squared", "cross_entropy"), ("dense", "masked")
    )
    if (wiring, normalisation, mask) != ("skip", "parent", "dense")  # which reads nothing from above
]
FAMILY += [HeadSettings(tied=True), HeadSettings(cost="squared", tied=True), HeadSettings(prior_strength=0.6)]
PARENT = [settings for settings in FAMILY if settings.normalisation == "parent"]
WIDTH = 3


@st.composite
def heads(draw: st.DrawFn, family: list[HeadSettings] | None = None) -> HierarchicalHead:
    """A random head in double precision, with large weights so that probabilities differ."""
    layers = draw(layered())
    torch.manual_seed(draw(st.integers(0, 1000)))
    head = build_head(layers, WIDTH, draw(st.sampled_from(family or FAMILY))).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=2.0)
    return head


def hidden_rows(rows: int = 3) -> Tensor:
    return torch.randn(rows, WIDTH, dtype=torch.float64)


def enumerated(layers: Layers, scores: Tensor, row: int) -> dict[Path, float]:
    """Every complete trace of a row as neurons, with its log score; scores are (options, rows)."""
    return all_scored(layers, scores[:, row].tolist())
