"""Benchmarks: one module for each question; each prints a table and can write JSON."""
