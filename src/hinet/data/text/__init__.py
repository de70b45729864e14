"""Texts as CSR rows of weighted n-grams."""

from hinet.data.text.features import HashedTexts, TextFeatures
from hinet.data.text.known_words import known_shares, unknown_words
from hinet.data.text.settings import TextSettings

__all__ = ["HashedTexts", "TextFeatures", "TextSettings", "known_shares", "unknown_words"]
