"""Reductions that keep an optimum: arc consistency, dead-end elimination, functional edges, variable elimination."""
