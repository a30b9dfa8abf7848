"""`python -m autopar` is `autopar`."""

from autopar.cli import app

app(prog_name="autopar")
