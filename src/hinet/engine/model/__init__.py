"""What the fused engine trains and searches, as plain arrays."""
