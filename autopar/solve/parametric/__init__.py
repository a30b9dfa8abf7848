"""One problem under all memory limits: the Lagrangian dual as a curve over prices."""
