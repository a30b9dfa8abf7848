"""Numbers only: a Problem in, a verified Solution out. Knows no graph, no tensor and no JAX."""
