"""Hardware and numbers only: how long computing and communicating take on a given cluster. No autopar, no JAX."""
