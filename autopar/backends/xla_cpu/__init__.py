"""What XLA's CPU compiler sets aside for a program: its kernels, their order, and where their results lie."""
