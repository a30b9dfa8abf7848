"""What a device holds and when: counted for the Problem, and accounted of a program."""
