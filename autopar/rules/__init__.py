"""Knowledge: for each primitive, which dims of operands and results are the same index. Never sees a cost."""
