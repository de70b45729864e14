"""Answers of a fused model."""
