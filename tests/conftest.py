"""Eight virtual CPU devices for every test, set before JAX starts its backend; what makes the suite quick."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import jax
import pytest
from hypothesis import HealthCheck, settings

from tests.quick_compile import AS_FUSED, QUICK, compiled_by

jax.config.update("jax_num_cpu_devices", 8)
# Collections took 9 % of the CPU time (15 of 167 s, measured on a tenth of the suite); they find next to nothing.
gc.set_threshold(20_000, 20, 20)
# No test may fail because the machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Of more examples than these every run tries one in QUICK_SHARE; all are tried by the slow ones.
FEW_EXAMPLES = 40
QUICK_SHARE = 5
_SETTINGS = (
    "_hypothesis_internal_use_settings"  # hypothesis has no public name for those of one test
)


def pytest_configure(config: pytest.Config) -> None:
    """From the first import on: compiling took half of the CPU time of what runs in the tests' own process."""
    quickly = ExitStack()
    quickly.enter_context(compiled_by(QUICK))
    config.add_cleanup(quickly.close)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of many drawn examples is two: some of them, and, among the slow ones, all."""
    own = getattr(metafunc.function, _SETTINGS, None)
    is_slow = metafunc.definition.get_closest_marker("slow") is not None
    if own is None or is_slow or own.max_examples <= FEW_EXAMPLES:
        return

    some = pytest.param(QUICK_SHARE, id="some")
    every = pytest.param(1, id="all", marks=pytest.mark.slow)
    metafunc.parametrize("_examples", [some, every], indirect=True)


@pytest.fixture(autouse=True)
def _examples(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a test of many drawn examples one in as many as it is given."""
    share: int = getattr(request, "param", 1)
    if share == 1:
        yield
        return

    with pytest.MonkeyPatch.context() as patch:
        own = getattr(request.function, _SETTINGS)
        fewer = settings(own, max_examples=own.max_examples // share)
        patch.setattr(request.function, _SETTINGS, fewer)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of parameters that ask the same, some are quick."""
    seen = Counter[str]()
    for item in items:
        share = item.get_closest_marker("quick_share")
        if share is None or item.get_closest_marker("slow") is not None:
            continue
        name = item.nodeid.partition("[")[0]
        if seen[name] % share.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[name] += 1


@pytest.fixture(scope="module")
def fused_as_ever() -> Iterator[None]:
    """For modules that look at the kernels that XLA makes, and at the memory that it sets aside for them."""
    with compiled_by(AS_FUSED):
        yield
