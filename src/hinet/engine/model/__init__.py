"""The fused model as plain arrays."""
