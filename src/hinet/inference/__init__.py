"""From scores to answers: downpour (exact best traces), marginals (probabilities of nodes and labels)."""

from hinet.inference.downpour import best_traces_to, downpour
from hinet.inference.marginals import Marginals, backward, best_labels, forward, labels_above, marginals

__all__ = ["Marginals", "backward", "best_labels", "best_traces_to", "downpour", "forward", "labels_above", "marginals"]
