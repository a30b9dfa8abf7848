"""Source: a program as the text of a Python module that imports JAX alone."""
