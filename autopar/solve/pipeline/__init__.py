"""The stages in order, and the incremental solve."""
