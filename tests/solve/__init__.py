"""Tests of autopar.solve."""
