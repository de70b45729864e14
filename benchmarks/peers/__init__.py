"""hinet and the tools people use today: the same rows, machine and threads, from raw text to labels."""
