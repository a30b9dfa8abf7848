"""From a plan to an explicit program: lower, then passes that rewrite it. The program is valid after every pass."""
