"""Seconds of one operator on one device: rooflines, fused loops, bodies."""
