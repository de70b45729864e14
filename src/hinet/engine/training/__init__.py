"""Training of the fused model; prediction imports nothing of it."""
