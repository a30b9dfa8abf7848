"""Benchmarks: one module for each question; each prints a table, can write JSON, and records its tables (`record`)."""
