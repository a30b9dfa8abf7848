"""Alone: what a process without autopar makes of modules that plans wrote: `python alone.py OPTIONS FOLDER NAME...`.

Of each module FOLDER/NAME.py it calls the function on the arguments in NAME_in.npz, which are flat, and writes the flat
results to NAME_out.npz, and the compiled program to NAME.hlo.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

OPTIONS: dict[str, Any] = json.loads(sys.argv[1])
"""Those that the program is compiled with."""
FOLDER = Path(sys.argv[2])


def main(names: list[str]) -> None:
    for blocked in ("autopar", "cost_models"):
        sys.modules[blocked] = None  # pyright: ignore[reportArgumentType]
    jax.config.update("jax_num_cpu_devices", 8)
    sys.path.insert(0, str(FOLDER))
    for name in names:
        module: Any = importlib.import_module(name)
        given = np.load(FOLDER / f"{name}_in.npz")
        leaves = [given[f"arr_{n}"] for n in range(len(given.files))]
        compiled = module.program().lower(*leaves).compile(compiler_options=OPTIONS)
        np.savez(FOLDER / f"{name}_out.npz", *map(np.asarray, compiled(*leaves)))
        (FOLDER / f"{name}.hlo").write_text(compiled.as_text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[3:])
