"""Writes docs/reference/messages.md."""

import jax


def main() -> None:
    """Writes the page."""
    jax.config.update("jax_num_cpu_devices", 8)
    from tests.provoked.page import TARGET, page  # programs look at the devices when imported

    TARGET.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
