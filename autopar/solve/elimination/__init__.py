"""Bucket elimination: exact optima and min-marginals where the tables fit."""
