"""Constraints: what a user holds a plan to, and what it leaves of a space."""
