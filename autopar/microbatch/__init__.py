"""Micro-batches: a step that runs what depends on the batch slice by slice, and the rest once."""
