"""What is known of one compiler, behind one protocol."""
