"""The pages of the documents: those that people write, and those that are generated."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = {
    DOCS / "results.md",
    DOCS / "reference" / "primitives.md",
    DOCS / "reference" / "messages.md",
}
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
]
WRITTEN = [page for page in PAGES if page not in GENERATED]


def name_of(page: Path) -> str:
    """The page's path from the root of the repository."""
    return str(page.relative_to(ROOT))
