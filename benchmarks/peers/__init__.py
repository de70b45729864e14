"""hinet beside what people use today: the same rows, machine and threads, from raw text to labels."""
