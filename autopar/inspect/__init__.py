"""What XLA made of a program: its collectives and memory, beside those of the plan."""
