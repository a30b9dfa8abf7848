"""TRW-S: dual bounds by message passing, and choices decoded on the way."""
