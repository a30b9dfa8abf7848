"""The public API: compile a function, or plan it without having its devices."""
