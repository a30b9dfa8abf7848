"""Reduced-cost fixing of values and pairs, to a fixed point."""
