"""Padding: a graph in which uneven dims are longer, so that they can be split; what is added never changes a value."""

from autopar.trace.padding.rewrite import padded as padded
from autopar.trace.padding.sizes import padded_choices as padded_choices
