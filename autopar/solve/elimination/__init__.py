"""Bucket elimination: exact optima where the tables fit."""
