"""The picture of docs/guide/page.md: that page's own example, as a browser shows it. Run: python -m docs.page"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GUIDE = Path(__file__).parent / "guide"
_SIZE = "1440,1700"
_COLOURS = "128"


def main() -> None:
    """Writes docs/guide/page.png; needs Chromium, and Pillow to make it small."""
    from PIL import Image

    import autopar

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no chromium and no google-chrome on the PATH")

    found = re.search(
        r'```python title="model.py"\n(.*?)```', (GUIDE / "page.md").read_text(), re.S
    )
    assert found is not None, "page.md has no model.py"
    model: dict[str, object] = {}
    exec(compile(found[1], "model.py", "exec"), model)  # the page's own example
    step, shapes, options = model["task"]()  # type: ignore[operator]
    plan = autopar.plan(step, *shapes, **options)
    nodes = plan.summary.step.nodes  # type: ignore[union-attr]
    chosen = next(n for n, node in enumerate(nodes) if node.kind == "dot_general")

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        plan.to_html(page, compare=True)
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        shot = f"--screenshot={folder}/page.png"
        own = f"--user-data-dir={folder}/profile"
        command = [browser, *flags, own, f"--window-size={_SIZE}", shot]
        subprocess.run([*command, f"{page.as_uri()}#node-{chosen}"], check=True)
        picture = Image.open(f"{folder}/page.png").convert("RGB")
        picture.quantize(int(_COLOURS)).save(GUIDE / "page.png", optimize=True)


if __name__ == "__main__":
    main()
