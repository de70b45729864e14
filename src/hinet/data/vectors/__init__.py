"""Static vectors of tokens: read from folders and files, and summed over the tokens of texts."""

from hinet.data.vectors.reading import read_vectors
from hinet.data.vectors.token_vectors import TokenVectors

__all__ = ["TokenVectors", "read_vectors"]
