"""Loaders: sources, elements and positions."""

import runpy

import grain

from autopar.data import Reading, Rows, loader
from tests.provoked.programs._shared import P, Path, autopar, jax, np, w

_AT_ONCE = Reading(0, 0, 0)


def _plan():
    def step(w, images, labels):
        return (images @ w).sum() + labels.sum()

    shapes = jax.ShapeDtypeStruct((8, 16), np.float32), jax.ShapeDtypeStruct((8,), np.float32)
    pins = (autopar.pin("images", P("a")),)
    return autopar.plan(step, w, *shapes, cluster="cpu8", mesh={"a": 8}, constraints=pins)


def _rows(count=20):
    return Rows({"images": np.ones((count, 16), np.float32), "labels": np.ones(count, np.float32)})


def _loader(source, **options):
    return loader(source, _plan(), "images", "labels", reading=_AT_ONCE, depth=0, **options)


def _read_by_workers():
    loader(_rows(), _plan(), "images", "labels", reading=Reading(workers=2))


def rows_of_different_numbers():
    Rows({"images": np.ones((20, 16)), "labels": np.ones(19)})


def a_loader_of_no_arguments():
    loader(_rows(), _plan())


def a_loader_of_an_argument_that_is_not_there():
    loader(_rows(), _plan(), "pictures")


def a_loader_of_arguments_without_rows_in_common():
    loader(_rows(), _plan(), "images", "w")


def a_loader_of_what_was_not_planned_yet():
    loader(_rows(), autopar.compile(lambda images: images.sum()), "images")


def a_loader_of_keys():
    plan = autopar.plan(jax.random.bits, jax.random.key(0), cluster="cpu8", mesh={"a": 8})
    loader(_rows(), plan, "key")


def a_source_of_fewer_rows_than_a_batch():
    _loader(_rows(7))


def a_source_that_is_no_source():
    _loader({"images": np.ones((20, 16))})


def a_source_without_end():
    _loader(grain.MapDataset.range(3).repeat())


def a_source_that_drops_rows():
    _loader(grain.MapDataset.range(50).filter(lambda n: n % 2 == 0).map(lambda n: _rows()[n % 20]))


def a_source_whose_elements_lack_an_argument():
    _loader(Rows({"images": np.ones((20, 16), np.float32)}))


def a_source_whose_elements_are_numbers():
    _loader([1.0] * 20)


def a_source_of_another_type():
    _loader(Rows({"images": np.ones((20, 9), np.float32), "labels": np.ones(20, np.float32)}))


def a_source_of_another_structure():
    images = {"left": np.ones((20, 16), np.float32)}
    _loader(Rows({"images": images, "labels": np.ones(20, np.float32)}))


def a_source_with_a_row_that_is_none():
    def transform(element):
        return None

    next(_loader(_rows(), transforms=(transform,)))


def a_transform_that_is_a_filter():
    class Drop(grain.transforms.Filter):
        def filter(self, element):
            return False

    _loader(_rows(), transforms=(Drop(),))


def a_position_that_is_none():
    _loader(_rows()).set_state({"step": 3})


def a_position_in_other_data():
    _loader(_rows()).set_state({**_loader(_rows(21)).get_state()})


def epochs_that_are_no_number():
    _loader(_rows(), epochs=1.5)


def an_end_that_is_unknown():
    _loader(_rows(), at_end="stop")


def a_depth_below_zero():
    loader(_rows(), _plan(), "images", "labels", depth=-1)


def a_seed_below_zero():
    _loader(_rows(), seed=-1)


def a_reading_with_threads_below_zero():
    Reading(workers=0, threads=-1, buffer=1)


def a_reading_without_a_buffer():
    Reading(workers=0, threads=2, buffer=0)


def a_loader_of_what_has_two_plans():
    double = autopar.compile(lambda images: (images * 2).sum(), cluster="cpu8", mesh={"a": 8})
    double.plan(jax.ShapeDtypeStruct((8, 16), np.float32))
    double.plan(jax.ShapeDtypeStruct((16, 16), np.float32))
    loader(_rows(), double, "images")


def a_loader_with_workers_in_a_script_without_a_guard():
    Path("train.py").write_text("_read_by_workers()")
    runpy.run_path("train.py", {"_read_by_workers": _read_by_workers}, run_name="__main__")
