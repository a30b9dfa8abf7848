"""Proofs of bounds as data, and the checker, which shares nothing with the search."""
