"""Random heads on random taxonomies, and the enumeration of all traces that every law is held against."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

from hinet import Layers
from hinet.network import HeadSettings, HierarchicalHead, build_head
from hinet.taxonomy import STOP
from tests.strategies import layered

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
    """A head of the family with large random weights, so that probabilities differ, in double precision."""
    layers = draw(layered())
    torch.manual_seed(draw(st.integers(0, 1000)))
    head = build_head(layers, WIDTH, draw(st.sampled_from(family or FAMILY))).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=2.0)
    return head


def hidden_rows(rows: int = 3) -> Tensor:
    return torch.randn(rows, WIDTH, dtype=torch.float64)


def enumerated(layers: Layers, scores: Tensor, row: int) -> dict[tuple[int, ...], float]:
    """Every complete trace of a row, as its neurons, with its log score: the sum along its options."""
    scores = scores.detach()
    found: dict[tuple[int, ...], float] = {}

    def walk(neuron: int, path: tuple[int, ...], score: float) -> None:
        for option in range(int(layers.option_offsets[neuron]), int(layers.option_offsets[neuron + 1])):
            target = int(layers.option_neuron[option])
            total = score + float(scores[option, row])
            if target == STOP:
                found[path] = total
            else:
                walk(target, (*path, target), total)

    walk(0, (), 0.0)
    return found
