"""What is known of an operator: its rule, its traits, how much it computes and what it touches."""
