"""The temperature of a torch network: one factor for all its logits."""

from __future__ import annotations

import copy

import torch

from hinet.networks.models import HiNet


def sharpened(network: HiNet, factor: float) -> HiNet:
    """Return a copy whose logits are multiplied by ``factor``; its feature network is shared."""
    copied = copy.copy(network)
    copied._modules = {**network._modules, "head": copy.deepcopy(network.head)}
    with torch.no_grad():
        for parameter in copied.head.parameters():
            parameter.mul_(factor)
    return copied
