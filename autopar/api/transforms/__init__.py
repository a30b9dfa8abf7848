"""Transformations: what JAX makes of a compiled function, planned anew as the function that it is.

`planned` is a call of a compiled function on flat arrays, `entry` makes it of a user's call. Under a trace of JAX it
is bound as a primitive (`primitive`), whose rules make other planned calls of it: value and gradients as one plan,
tangents, maps (`derived`), or a forward and a backward part that meet in residuals (`pair`).
"""
