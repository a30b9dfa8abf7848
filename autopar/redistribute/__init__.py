"""Redistribution: from one Placement of a tensor to another, by the cheapest collectives."""
