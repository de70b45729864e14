"""From scores to answers: downpour (exact best traces), marginals (probabilities of nodes and labels)."""

from hinet.inference.downpour import downpour
from hinet.inference.marginals import Marginals, marginals

__all__ = ["Marginals", "downpour", "marginals"]
