"""The vocabulary: frozen records that every stage shares. Imports nothing of autopar and no JAX."""
