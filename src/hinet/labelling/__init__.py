"""Labelling projects: rows without labels, people who label them, and a model that learns from each label."""
