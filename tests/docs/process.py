"""A page in a process of its own, with eight virtual CPU devices, where every warning is an error.

Outputs on the pages are those of one release of JAX: others trace other operators. There blocks have to run.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

SHOWN_BY = "0.10."
CONTEXT = get_context("forkserver")
# imported once for all pages
CONTEXT.set_forkserver_preload(["autopar.cli", "autopar.api.front", "autopar.operators"])


def run_apart(page: Path) -> None:
    """Runs the blocks of a page; raises what it raises."""
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        pool.submit(_run, page).result(timeout=300)


def _run(page: Path) -> None:
    import jax

    from tests.docs.blocks import run_page

    is_shown = jax.__version__.startswith(SHOWN_BY)
    jax.config.update("jax_num_cpu_devices", 8)
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_page(page, None if is_shown else lambda *_: None)
