"""Writes docs/reference/messages.md."""

from pathlib import Path
from tempfile import TemporaryDirectory

import jax


def main() -> None:
    """Writes the page."""
    jax.config.update("jax_num_cpu_devices", 8)
    from tests.provoked.page import TARGET, page  # programs look at the devices when imported

    with TemporaryDirectory() as folder:
        TARGET.write_text(page(Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
