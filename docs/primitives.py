"""Writes docs/reference/primitives.md, what can be split of each primitive: `python -m docs.primitives`."""

from pathlib import Path

from autopar.ops.rules.table import primitive_table

TARGET = Path(__file__).parent / "reference" / "primitives.md"

if __name__ == "__main__":
    TARGET.write_text(primitive_table(), encoding="utf-8")
