"""Texts as CSR rows of weighted n-grams."""

from hinet.data.text.features import HashedTexts, TextFeatures, TextSettings, known_shares, unknown_words

__all__ = ["HashedTexts", "TextFeatures", "TextSettings", "known_shares", "unknown_words"]
