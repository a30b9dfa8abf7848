"""What is known of an operator: its rule, its traits, what it computes, touches, holds and sends inside.

Importing this package fills the registry of rules and the table of traits.
"""

from autopar.ops import rules

__all__ = ["rules"]
