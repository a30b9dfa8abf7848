"""How much an operator computes, reads, writes, and sends inside itself."""
