"""Which requirements of an infeasible problem clash."""
