"""The slow reference: what a sharded program means, on numpy arrays, one device after another.

Nothing of `autopar.emit` but `localize` is used, nothing is compiled, and no mesh of JAX exists.
"""
