"""JAX out: a ShardedProgram as a function that runs it."""
