"""Calibration: the devices present are measured, and the numbers of a cluster file fitted to what they take.

`cases` says what is measured, `programs` makes JAX programs of it, `clock` times them, `session` goes through them
until it is told to end, `machine` says what is known without measuring. `cost_models.fit` fits.
"""
