"""Checks of networks and devices that a user gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def is_network(value: Any) -> bool:
    """Return whether a value is a network of torch."""
    return isinstance(value, nn.Module)


def device_name(value: Any) -> str | None:
    """Return the name of a device that torch finds here and can compute on, or None."""
    try:
        return None if torch.empty(0, device=value).is_meta else str(torch.device(value))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        return None
