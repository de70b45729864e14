"""Softmax and sums over runs of neighbouring rows, for groups of different sizes side by side."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_log_softmax(values: Tensor, lengths: Tensor) -> Tensor:
    """Log-softmax along dim 0 within runs of ``lengths`` rows; (m, ...) stays (m, ...).

    >>> shares = segment_log_softmax(torch.zeros(5, 1), torch.tensor([2, 3])).exp()
    >>> [round(share, 3) for share in shares[:, 0].tolist()]
    [0.5, 0.5, 0.333, 0.333, 0.333]
    """
    count = len(values)
    top = torch.segment_reduce(values.detach(), "max", lengths=lengths, axis=0)  # (segments, ...)
    shifted = values - top.repeat_interleave(lengths, 0, output_size=count)
    total = torch.segment_reduce(shifted.exp(), "sum", lengths=lengths, axis=0)
    return shifted - total.log().repeat_interleave(lengths, 0, output_size=count)


def segment_logsumexp(values: Tensor, lengths: Tensor) -> Tensor:
    """Log of the sum of exponentials along dim 0 within runs of ``lengths`` rows; (m, ...) to (segments, ...)."""
    if len(lengths) == 0:
        return values[:0]
    top = torch.segment_reduce(values.detach(), "max", lengths=lengths, axis=0)
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    shifted = values - top.repeat_interleave(lengths, 0, output_size=len(values))
    return torch.segment_reduce(shifted.exp(), "sum", lengths=lengths, axis=0).log() + top
