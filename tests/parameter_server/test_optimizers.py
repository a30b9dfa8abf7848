"""What optimizers let servers do is found by trial: those of optax, chained and not."""

from __future__ import annotations

import optax
import pytest

from autopar.errors import UnsuitableOptimizer
from autopar.parameter_server.optimizers import (
    Traits,
    check_dense,
    check_sparse,
    held_bytes,
    traits_of,
)

SPARSE = Traits(by_leaf=True, by_row=True, keeps_untouched=True)
DENSE = Traits(by_leaf=True, by_row=True, keeps_untouched=False)
WHOLE = Traits(by_leaf=True, by_row=False, keeps_untouched=False)
FOUND = {
    "sgd": (optax.sgd(0.1), SPARSE),
    "scheduled sgd": (optax.sgd(optax.linear_schedule(0.0, 0.1, 10)), SPARSE),
    "adagrad": (optax.adagrad(0.1), SPARSE),
    "clipped sgd": (optax.chain(optax.clip(1.0), optax.sgd(0.1)), SPARSE),
    "momentum": (optax.sgd(0.1, momentum=0.9), DENSE),
    "adam": (optax.adam(0.1), DENSE),
    "adamw": (optax.adamw(0.1), DENSE),
    "rmsprop": (optax.rmsprop(0.1), DENSE),
    "decayed sgd": (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)), DENSE),
    "lamb": (optax.lamb(0.1), WHOLE),
    "lars": (optax.lars(0.1), WHOLE),
    "factored": (optax.adafactor(0.1, min_dim_size_to_factor=2), WHOLE),
}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("name", FOUND)
def test_what_holds_of_an_optimizer(name: str) -> None:
    optimizer, traits = FOUND[name]
    assert traits_of(optimizer) == traits


def test_what_looks_at_all_parameters_is_refused() -> None:
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
    with pytest.raises(UnsuitableOptimizer, match="one parameter depends on others"):
        check_dense(clipped)
    with pytest.raises(UnsuitableOptimizer, match="updates each row by itself"):
        check_sparse(clipped)


@pytest.mark.parametrize("name", ["adam", "momentum", "decayed sgd"])
def test_what_changes_untouched_rows_is_refused_for_tables(name: str) -> None:
    with pytest.raises(UnsuitableOptimizer, match="a zero gradient changes neither"):
        check_sparse(FOUND[name][0])


def test_masks_by_path_are_refused_with_what_they_say() -> None:
    masked = optax.masked(optax.sgd(0.1), {"kernel": True, "bias": False})
    with pytest.raises(UnsuitableOptimizer, match="masks by path"):
        check_dense(masked)


def test_leaves_are_cut_where_the_optimizer_lets() -> None:
    assert check_dense(optax.adam(0.1))
    assert not check_dense(optax.lamb(0.1))


def test_held_bytes_count_the_state() -> None:
    assert held_bytes(optax.sgd(0.1), (10, 3), "float32") == 120
    assert held_bytes(optax.adam(0.1), (10, 3), "float32") == 3 * 120 + 4
