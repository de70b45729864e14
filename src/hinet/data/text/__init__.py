"""Texts as CSR rows of weighted n-grams."""

from hinet.data.text.features import HashedTexts, TextFeatures, known_shares, unknown_words
from hinet.data.text.vocabulary import TextSettings

__all__ = ["HashedTexts", "TextFeatures", "TextSettings", "known_shares", "unknown_words"]
