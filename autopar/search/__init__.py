"""What is searched around the solver: candidates, constraints, modes and mesh shapes."""
