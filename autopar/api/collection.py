"""Collection: Python's search for unreachable cycles, put off while a plan is made."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None]:
    """No garbage collection within the block, if it was on before.

    Planning makes some millions of records that refer to each other in one direction and live until its end: going
    through them again and again frees nothing and takes a third of the time. Behind the block they count as old, as
    they would if collections had met them: else the next collection, of what is young, would go through all of them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            _grow_old()
            gc.enable()


def _grow_old() -> None:
    """All objects count as old; nothing is done where the user has frozen some, as these would thaw."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
