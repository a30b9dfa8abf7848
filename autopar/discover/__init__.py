"""Rules by trial: an operator without a rule in, what small runs of it show out. Runs JAX, as trial needs values.

What is found is evidence and no proof: it is marked as found, reported as found, and refused under `strict=True`.
"""

from autopar.discover.find import find_rule

__all__ = ["find_rule"]
