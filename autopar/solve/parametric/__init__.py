"""One problem under all memory limits: the dual as a curve over prices, Lagrangian relaxation."""
