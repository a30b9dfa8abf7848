"""Rules and operators of one's own."""

from autopar.ops.rules.factor_rule import FactorRule
from tests.provoked.programs._shared import autopar, jax, jnp, np, w, x


def a_rule_without_an_arrow():
    autopar.operator("a b")


def a_rule_with_two_arrows():
    autopar.operator("a -> b -> c")


def a_rule_with_dots_behind_a_dim():
    autopar.operator("a ... -> a")


def a_rule_that_closes_a_bracket_too_many():
    autopar.operator("a b) -> a")


def a_rule_with_a_bracket_of_one():
    autopar.operator("a (b) -> a")


def a_rule_with_a_bracket_in_a_bracket():
    autopar.operator("(a (b c)) -> a")


def a_rule_with_a_bracket_left_open():
    autopar.operator("c (a b -> a")


def a_rule_with_other_letters():
    autopar.operator("a [b -> a")


def a_rule_with_a_factor_twice():
    autopar.operator("c, a a -> a")


def a_rule_that_loses_a_factor():
    autopar.operator("a b -> a")


def a_rule_without_the_size_of_a_factor():
    autopar.operator("(a b) -> a", reduced="b")


def a_rule_with_a_size_too_many():
    autopar.operator("(a b) -> a b", a=2)


def a_rule_reduced_by_what_is_unknown():
    autopar.operator("a b -> a", reduced={"b": "prod"})


def a_rule_that_freezes_what_it_has_not():
    autopar.operator("a -> a", frozen="q")


def a_rule_linear_in_an_operand_that_is_not_there():
    autopar.operator("a -> a", linear=[(0, 1)])


def options_beside_a_rule_that_is_a_function():
    autopar.operator(autopar.whole_along(-1), frozen="a")


def a_rule_of_other_dims_than_its_operator():
    @autopar.operator("a -> a")
    def mine_of_one_dim(x):
        return x * 2

    autopar.plan(lambda x: mine_of_one_dim(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_of_other_operands_than_its_operator():
    @autopar.operator("a b, a b -> a b")
    def mine_of_two(x):
        return x * 2

    autopar.plan(lambda x: mine_of_two(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_whose_sizes_differ():
    @autopar.operator("a b -> b a")
    def mine_turned(x):
        return x * 2

    autopar.plan(lambda x: mine_turned(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_whose_bracket_makes_another_size():
    @autopar.operator("(a b) c -> a c", reduced="b", b=3)
    def mine_in_brackets(x):
        return x[:3] * 2

    autopar.plan(lambda x: mine_in_brackets(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_whose_dots_stand_for_other_dims():
    @autopar.operator("... a, ... b -> ... a", frozen="b")
    def mine_of_any(x, w):
        return x * 2

    autopar.plan(lambda x, w: mine_of_any(x, w).sum(), x, w, cluster="cpu8", mesh={"a": 8})


def whole_along_an_axis_that_is_not_there():
    @autopar.operator(autopar.whole_along(5))
    def mine_along_five(x):
        return x * 2

    autopar.plan(lambda x: mine_along_five(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def whole_along_with_an_operand_that_does_not_broadcast():
    @autopar.operator(autopar.whole_along(0))
    def mine_with_another(x, w):
        return x * w.sum()

    autopar.plan(lambda x, w: mine_with_another(x, w).sum(), x, w, cluster="cpu8", mesh={"a": 8})


def a_rule_for_what_has_one():
    autopar.register_rule("dot_general", "m k, k n -> m n", reduced="k")


def a_rule_for_what_has_its_shapes_fixed():
    autopar.register_rule("pallas_call", "b n -> b n")


def a_static_argument_that_the_operator_has_not():
    @autopar.operator("a -> a", static="axes")
    def mine_without_axes(x):
        return x


def an_operator_by_the_name_of_a_primitive():
    @autopar.operator("a -> a", name="tanh")
    def mine_by_that_name(x):
        return x


def an_operator_with_an_argument_that_is_text():
    @autopar.operator("... -> ...")
    def mine_by_name(x, name):
        return x

    autopar.plan(lambda x: mine_by_name(x, "relu").sum(), x, cluster="cpu8", mesh={"a": 8})


def an_operator_that_closes_over_a_value():
    def outer(x, y):
        @autopar.operator("... -> ...", name="mine closing over")
        def closing(x):
            return x * y

        return closing(x).sum()

    autopar.plan(outer, x, np.float32(3), cluster="cpu8", mesh={"a": 8})


def an_operator_without_a_rule_under_strict():
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    random_sine_p = Primitive("random_sine")  # by its name, nothing to be tried
    random_sine_p.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(random_sine_p, mlir.lower_fun(jnp.sin, multiple_results=False))
    jax.jit(random_sine_p.bind)(x)
    autopar.plan(lambda x: random_sine_p.bind(x).sum(), x, cluster="cpu8", strict=True)


def an_operator_whose_rule_was_found_under_strict():
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    third_party_p = Primitive("third_party_sine")
    third_party_p.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(third_party_p, mlir.lower_fun(jnp.sin, multiple_results=False))
    autopar.plan(lambda x: third_party_p.bind(x).sum(), x, cluster="cpu8", strict=True)


def an_operator_with_a_side_effect():
    @autopar.operator("... -> ...")
    def mine_that_prints(x):
        jax.debug.print("{}", x)
        return x * 2

    autopar.plan(lambda x: mine_that_prints(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_by_indices_of_other_dims():
    @autopar.operator(lambda op: FactorRule.of(op, ins=[["a"]], outs=[["a"]]))
    def mine_by_one_index(x):
        return x * 2

    autopar.plan(lambda x: mine_by_one_index(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_by_indices_with_an_index_twice():
    @autopar.operator(lambda op: FactorRule.of(op, ins=[["a", "a"]], outs=[["a", "a"]]))
    def mine_by_one_index_twice(x):
        return x * 2

    autopar.plan(
        lambda x: mine_by_one_index_twice(x).sum(), x[:, :8], cluster="cpu8", mesh={"a": 8}
    )


def a_rule_by_indices_that_loses_one():
    @autopar.operator(lambda op: FactorRule.of(op, ins=[["a", "b"]], outs=[["a"]]))
    def mine_without_an_index(x):
        return x[:, 0]

    autopar.plan(lambda x: mine_without_an_index(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_by_indices_of_another_size():
    @autopar.operator(lambda op: FactorRule.of(op, ins=[["a", "b"]], outs=[["b", "a"]]))
    def mine_by_turned_indices(x):
        return x * 2

    autopar.plan(lambda x: mine_by_turned_indices(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_by_indices_without_the_size_of_one():
    @autopar.operator(
        lambda op: FactorRule.of(op, ins=[[("a", "c"), "b"]], outs=[[("a", "c"), "b"]])
    )
    def mine_without_a_size(x):
        return x * 2

    autopar.plan(lambda x: mine_without_a_size(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_by_indices_that_carries_what_is_not_reduced():
    @autopar.operator(
        lambda op: FactorRule.of(op, ins=[["a", "b"]], outs=[["a", "b"]], carried={"a": (0,)})
    )
    def mine_carrying(x):
        return x * 2

    autopar.plan(lambda x: mine_carrying(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def a_rule_by_indices_whose_operand_holds_what_it_carries():
    def rule(op):
        return FactorRule.of(
            op, ins=[["a", "b"]], outs=[["a"]], reduced={"b": "sum"}, carried={"b": (0,)}
        )

    @autopar.operator(rule)
    def mine_holding(x):
        return x.sum(1)

    autopar.plan(lambda x: mine_holding(x).sum(), x, cluster="cpu8", mesh={"a": 8})


def the_gradient_of_an_operator_that_knows_where_its_shard_begins():
    @autopar.operator(lambda op: FactorRule.of(op, ins=[["a"]], outs=[["a"]], offsets=["a"]))
    def mine_with_offsets(x):
        return x * jnp.arange(8.0)

    def total(x):
        return mine_with_offsets(x).sum()

    autopar.plan(jax.grad(total), np.ones(8, np.float32), cluster="cpu8", mesh={"a": 8})
