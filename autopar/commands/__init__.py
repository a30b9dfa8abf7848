"""Commands: those of the command line that check a program rather than report a plan, each in a module of its own."""
