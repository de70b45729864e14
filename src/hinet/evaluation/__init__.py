"""Evaluation of models: metrics on labelled rows, risk thresholds, comparison of networks, plots."""
