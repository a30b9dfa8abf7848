"""Warnings: what a plan does that may not be meant."""

from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import mlir

from tests.provoked.programs._shared import (
    NamedSharding,
    P,
    autopar,
    jax,
    jnp,
    layer,
    mesh,
    np,
    w,
    x,
)


def _primitive(name, function):
    made = Primitive(name)
    made.def_abstract_eval(lambda aval: jax.core.ShapedArray(aval.shape, aval.dtype))
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=False))
    return made


_TURN = _primitive("third_party_turn", lambda x: x[::-1])
_SINE = _primitive("third_party_sine", jnp.sin)


def an_operator_without_a_rule():
    autopar.plan(lambda v: _TURN.bind(v).sum(), x[0], cluster="cpu8", mesh={"a": 8})


def an_operator_whose_rule_was_found():
    autopar.plan(lambda x: _SINE.bind(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_kernel_without_a_price():
    def doubled(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    def kernel(x):
        return pl.pallas_call(doubled, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    own = jax.shard_map(kernel, mesh=mesh, in_specs=P("a"), out_specs=P("a"), check_vma=False)
    autopar.plan(lambda x: own(x).sum(), x, cluster="cpu8")


def data_that_does_not_divide():
    autopar.plan(layer, w, x[:6], cluster="cpu8", mesh={"a": 8}, mode="data_parallel")


def random_bits_made_whole():
    def dropout(key, x):
        return x * jax.random.bernoulli(key, 0.9, x.shape)

    big = jax.ShapeDtypeStruct((4096, 4096), np.float32)
    autopar.plan(dropout, jax.random.key(0, impl="rbg"), big, cluster="tpu-v5e-4x4")


def layers_that_cannot_be_stages():
    def deep(params, x):
        return autopar.scan_layers(lambda x, p: (x - x.mean(0)) @ p, x, params).sum()

    shapes = [jax.ShapeDtypeStruct(dims, np.float32) for dims in ((4, 16, 16), (8, 8, 16))]
    autopar.plan(deep, *shapes, cluster="4x2xcpu-1gbit")


def arrays_of_an_object_that_is_no_pytree():
    class Model:
        def __init__(self):
            self.w = jnp.asarray(w)

        def __call__(self, x):
            return x @ self.w

    autopar.compile(Model(), cluster="cpu8")


def arrays_that_lie_otherwise_than_planned():
    pins = (autopar.pin("w", P("a")),)
    compiled = autopar.compile(layer, cluster="cpu8", mesh={"a": 2, "b": 4}, constraints=pins)
    compiled(jax.device_put(w, NamedSharding(mesh, P(None, "b"))), x)
