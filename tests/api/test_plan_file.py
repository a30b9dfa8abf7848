import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autopar.api.packed_plan import PackedPlan, PackedStrategy
from autopar.api.plan_file import PlanFile, PlanSignature, dump, load, plan_file, to_json
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import Plan, Stage
from autopar.core.strategy import MIRROR, NEXT, PREVIOUS, Exchange, Hop, Strategy
from autopar.errors import PlanFileError
from autopar.report.summary import CollectiveRow, OperatorRow, Report, TensorRow
from cost_models import Cluster, load_cluster

CLUSTER = load_cluster("8xh100")
SHAPES = ((16, 8), (64,), (), (8, 8, 24))
DTYPE = "float32"

# Drawn plans ----------------------------------------------------------------------------------------------------------


def placements(mesh: DeviceMesh, ndim: int) -> st.SearchStrategy[Placement]:
    """Placements of a tensor: each axis splits a dim (-> its number), is unreduced (-> -1) or named nowhere (-> -2)."""

    def build(roles: list[int], kind: Any) -> Placement:
        axes = list(zip(mesh.names, roles, strict=True))
        dims = tuple(tuple(a for a, role in axes if role == d) for d in range(ndim))
        return Placement(dims, tuple(a for a, role in axes if role == -1), kind)

    roles = st.lists(st.integers(-2, ndim - 1), min_size=len(mesh.axes), max_size=len(mesh.axes))
    return st.builds(build, roles, st.sampled_from(["sum", "max", "min"]))


@st.composite
def strategies(draw: st.DrawFn, mesh: DeviceMesh) -> Strategy:
    some = st.lists(st.integers(0, 3).flatmap(lambda n: placements(mesh, n)), max_size=3).map(tuple)
    factors = draw(
        st.lists(st.tuples(st.sampled_from(["m", "n", "k"]), st.just(mesh.names[:1])), max_size=2)
    )
    exchanges = st.builds(
        Exchange,
        st.just("permute"),
        st.just(mesh.names[-1:]),
        st.integers(0, 99),
        st.integers(0, 3),
        st.sampled_from([NEXT, PREVIOUS, MIRROR, Hop(3), Hop(-2, "ring")]),
    )
    inside = draw(st.lists(exchanges, max_size=2).map(tuple))
    return Strategy(draw(some), draw(some), tuple(factors), draw(st.integers(1, 8)), inside)


times = st.floats(0, 1e3, allow_nan=False) | st.integers(0, 3)


@st.composite
def plan_files(draw: st.DrawFn) -> PlanFile:
    """Files of plans that never were, but could be: few strategies, many operators."""
    mesh = DeviceMesh(
        draw(
            st.sampled_from(
                [(("x", 8),), (("data", 2), ("model", 4)), (("a", 2), ("b", 2), ("c", 2))]
            )
        )
    )
    shapes = draw(st.lists(st.sampled_from(SHAPES), max_size=4))
    inputs = tuple(draw(placements(mesh, len(shape))) for shape in shapes)
    table = draw(st.lists(strategies(mesh), min_size=1, max_size=3))
    operators = tuple(draw(st.lists(st.sampled_from(table), max_size=20)))
    copies = tuple(draw(st.lists(placements(mesh, 2), max_size=3)))
    bound, slack = draw(times), draw(times)
    name = draw(st.text(max_size=8))
    plan = Plan(
        (Stage(mesh, inputs, operators, copies, inputs),),
        bound + slack,
        bound,
        name,
        fingerprint=name,
    )
    return file_of(plan, shapes, draw(times))


def file_of(plan: Plan, shapes: list[tuple[int, ...]], time_s: float = 1.5) -> PlanFile:
    stage = plan.stage
    rows = tuple(
        TensorRow(f"x[{n}]", shape, DTYPE, str(p), p.local_size(shape, stage.mesh) * 4)
        for n, (shape, p) in enumerate(zip(shapes, stage.inputs, strict=True))
    )
    report = Report(
        function="f",
        cluster=CLUSTER.name,
        mesh=stage.mesh.axes,
        space=plan.space,
        objective_s=plan.objective_s,
        lower_bound_s=plan.lower_bound_s,
        gap=plan.gap,
        step_time_s=time_s,
        compute_time_s=time_s,
        communication_time_s=0,
        peak_memory_bytes=1,
        memory_limit_bytes=None,
        inputs=rows,
        outputs=rows,
        operators=(OperatorRow("add", "m.py:1 (f)", "", "forward", ("[]",), ("[]",), 1, time_s),),
        collectives=(CollectiveRow("all_reduce", ("x",), 4, time_s, "mirror", "", "", ("x[0]",)),),
        peak=rows,
    )
    signature = PlanSignature(
        tuple((row.name, row.shape, row.dtype) for row in rows),
        tuple((row.shape, row.dtype) for row in rows),
    )
    return plan_file(plan, report, CLUSTER.to_dict(), signature)


MESH = DeviceMesh.of({"data": 2, "model": 4})
ROWS, COLUMNS = Placement((("data",), ())), Placement(((), ("data", "model")))
PRODUCT = Strategy((ROWS, COLUMNS), (Placement(((), ()), ("model",)),), (("m", ("data",)),), 2)


def example(operators: int = 3) -> PlanFile:
    stage = Stage(MESH, (ROWS, COLUMNS), (PRODUCT,) * operators, (ROWS,), (ROWS, COLUMNS))
    return file_of(Plan((stage,), 2.5, 2.0, "mode auto", fingerprint="f1n9e2"), [(16, 8), (16, 8)])


# Round trip -----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(file=plan_files())
def test_a_plan_reads_back_as_it_was(
    file: PlanFile, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    dump(file, path)
    loaded = load(path)
    assert loaded == file
    assert loaded.plan == file.plan
    assert loaded.report == file.report
    assert loaded.signature == file.signature
    assert to_json(loaded) == to_json(file)
    saved = path.read_bytes()
    dump(loaded, path)
    assert path.read_bytes() == saved


def test_the_types_are_those_of_the_records(tmp_path: Path) -> None:
    dump(example(), tmp_path / "plan.json")
    loaded = load(tmp_path / "plan.json")
    stage = loaded.plan.stage
    assert isinstance(stage.mesh, DeviceMesh)
    assert all(isinstance(strategy, Strategy) for strategy in stage.strategies)
    assert isinstance(stage.strategies[0].outs[0], Placement)
    assert isinstance(loaded.report.inputs[0], TensorRow)
    assert loaded.signature.inputs == (("x[0]", (16, 8), DTYPE), ("x[1]", (16, 8), DTYPE))
    assert Cluster.from_dict(loaded.cluster) == CLUSTER
    assert hash(stage.strategies[0]) == hash(PRODUCT)


def test_whole_numbers_given_as_times_are_floats() -> None:
    assert isinstance(example().report.communication_time_s, float)


def test_repeated_strategies_are_stored_once() -> None:
    few, many = (json.dumps(json.loads(to_json(example(n)))["plan"]) for n in (1, 1001))
    assert len(many) - len(few) == 1000 * len(", 0")
    packed = PackedPlan.of(example(1001).plan)
    assert len(packed.stages[0].strategies) == 1
    assert len(packed.stages[0].placements) == 3
    first, last = packed.plan().stage.strategies[0], packed.plan().stage.strategies[-1]
    assert first == last == PRODUCT


def test_the_file_has_sorted_keys_and_a_line_a_field() -> None:
    text = to_json(example())
    fields = json.loads(text)
    assert text.isascii()
    assert len(text.splitlines()) == len(fields) + 2
    assert text == to_json(example())
    shuffled = plan_file(
        example().plan,
        example().report,
        dict(reversed(CLUSTER.to_dict().items())),
        example().signature,
    )
    assert to_json(shuffled) == text


def test_a_file_is_small_and_says_what_it_is(tmp_path: Path) -> None:
    file, path = example(4000), tmp_path / "plan.json"
    dump(file, path)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (
        document["about"] == "f on mesh (data=2, model=4) of 8xh100: `autopar report FILE` shows it"
    )
    assert path.stat().st_size < len(to_json(file)) / 5


def test_a_file_of_plain_text_is_read(tmp_path: Path) -> None:
    """As versions of autopar wrote them that did not compress."""
    path = tmp_path / "plan.json"
    path.write_text(to_json(example()), encoding="utf-8")
    assert load(path) == example()


# Damage ---------------------------------------------------------------------------------------------------------------


def refused(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(PlanFileError) as error:
        load(path)
    message = str(error.value)
    assert str(path) in message
    return message


def test_every_97th_truncation_is_refused(tmp_path: Path) -> None:
    content = to_json(example()).encode()
    for end in range(0, len(content) - 2, 97):
        assert "is not JSON" in refused(tmp_path / "plan.json", content[:end])


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0), byte=st.binary(min_size=1, max_size=1), other=st.booleans())
def test_a_changed_byte_is_refused_or_changes_nothing(
    position: int, byte: bytes, other: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Contents have a checksum; what stands beside them may be another text, but no other plan."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    dump(example(), path)
    content = bytearray(path.read_bytes())
    place = position % len(content)
    content[place : place + 1] = byte if other else b""
    path.write_bytes(bytes(content))
    try:
        loaded = load(path)
    except PlanFileError:
        return
    assert loaded == example()


def test_contents_that_would_fill_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autopar.api.packed_plan.MOST_BYTES", 100)
    path = tmp_path / "plan.json"
    dump(example(), path)
    assert "its contents are more than 100 bytes" in refused(path, path.read_bytes())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\x00\xff\xfe\x80", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "no plan file"),
        (b"null", "no plan file"),
        (b"{}", "no field 'format_version'"),
        (b'{"format_version": 3, "autopar_version": "9.9"}', "format 3"),
        (b'{"format_version": 3, "autopar_version": "9.9"}', "'9.9'"),
        (b'{"format_version": 2}', "it has no contents"),
        (b'{"format_version": 2, "contents": [1]}', "it has no contents"),
        (b'{"format_version": 2, "contents": ""}', "its contents end too early"),
        (b'{"format_version": 2, "contents": "one"}', "its contents cannot be unpacked"),
        (b'{"format_version": 2, "contents": "\xc3\xa4"}', "its contents cannot be unpacked"),
        (b'{"format_version": true}', "format True"),
        (b'{"format_version": "1"}', "format '1'"),
        (b'{"format_version": 1}', "plan: Field required"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in refused(tmp_path / "plan.json", content)


def stage(data: Any) -> Any:
    return data["plan"]["stages"][0]


DAMAGE: list[tuple[Callable[[Any], object], str]] = [
    (lambda d: d.pop("report"), "report: Field required"),
    (lambda d: d["plan"].pop("fingerprint"), "plan.fingerprint: Field required"),
    (lambda d: d.update(extra=1), "extra: Extra inputs are not permitted"),
    (lambda d: stage(d).update(extra=1), "plan.stages[0].extra"),
    (lambda d: d["report"].update(extra=1), "report.extra"),
    (lambda d: d["plan"].update(objective_s="2.5"), "plan.objective_s: Input should be a valid number (given '2.5')"),
    (lambda d: d["plan"].update(objective_s=float("nan")), "plan.objective_s: Input should be a finite number"),
    (lambda d: d["plan"].update(objective_s=True), "plan.objective_s"),
    (lambda d: d["plan"].update(objective_s=1.0), "the lower bound 2.0 is above the objective 1.0"),
    (lambda d: d["plan"].update(objective_s=2.6), "the report's objective and lower bound are not those of the plan"),
    (lambda d: d["plan"].update(stages=[]), "the plan has 0 stages"),
    (lambda d: d["plan"]["stages"].append(stage(d)), "the plan has 2 stages"),
    (lambda d: stage(d)["mesh"].__setitem__(0, ["data", 2.0]), "plan.stages[0].mesh[0][1]"),
    (lambda d: stage(d)["mesh"].__setitem__(0, ["data", 0]), "mesh axis 'data' has size 0"),
    (lambda d: stage(d)["mesh"].__setitem__(0, ["model", 2]), "mesh axes must be named and distinct"),
    (lambda d: stage(d)["mesh"].__setitem__(0, ["other", 2]), "names an axis that mesh"),
    (lambda d: stage(d)["mesh"].__setitem__(0, ["data", 4]), "the report is for mesh"),
    (lambda d: stage(d)["placements"][0].update(dims=[["data"], ["data"]]), "[0]: a mesh axis is named twice"),
    (lambda d: stage(d)["placements"][0].update(dims="data"), "plan.stages[0].placements[0].dims"),
    (lambda d: stage(d)["placements"][0].update(kind="mean"), "plan.stages[0].placements[0].kind"),
    (lambda d: stage(d)["placements"][0].update(dims=[[], ["model"]]), "input 0: the report says"),
    (lambda d: stage(d)["placements"][0].update(dims=[["data"]]), "input 0"),
    (lambda d: stage(d)["strategies"][0].update(ins=[0, 7]), "strategies[0][1] is 7, but there are 3 placements"),
    (lambda d: stage(d)["strategies"][0].update(ins=[-1]), "strategies[0].ins[0]"),
    (lambda d: stage(d)["strategies"][0].update(split=0), "strategies[0].split"),
    (lambda d: stage(d)["strategies"][0].update(factors=[["m", ["z"]]]), "strategies[0] gives a factor an axis"),
    (lambda d: stage(d)["operators"].append(1), "operators[3] is 1, but there are 1 strategies"),
    (lambda d: stage(d)["operators"].append(0.0), "plan.stages[0].operators[3]"),
    (lambda d: stage(d)["inputs"].pop(), "the signature has 2 inputs, the plan 1, the report 2"),
    (lambda d: stage(d)["outputs"].pop(), "the signature has 2 outputs, the plan 1, the report 2"),
    (lambda d: d["signature"]["inputs"][0].__setitem__(1, [16, -8]), "signature.inputs[0][1][1]"),
    (lambda d: d["signature"]["inputs"][0].__setitem__(2, "int32"), "input 0: the report says"),
    (lambda d: d["signature"]["outputs"].pop(), "the signature has 1 outputs"),
    (lambda d: d["report"]["inputs"][1].update(placement="[-, -]"), "input 1: the report says"),
    (lambda d: d["report"]["inputs"][1].update(local_bytes=1.5), "report.inputs[1].local_bytes"),
    (lambda d: d["report"].update(operators=None), "report.operators"),
    (lambda d: d.update(cluster=[]), "cluster"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected"), DAMAGE)
def test_damage_is_named_where_it_is(
    tmp_path: Path, damage: Callable[[Any], object], expected: str
) -> None:
    data = json.loads(to_json(example()))
    damage(data)
    message = refused(tmp_path / "plan.json", json.dumps(data))
    assert expected in message
    assert "plan again" in message


def test_a_tensor_that_does_not_divide_evenly(tmp_path: Path) -> None:
    text = to_json(example())
    message = refused(tmp_path / "plan.json", text.replace("[16, 8]", "[16, 7]"))
    assert (
        "input 1 of shape (16, 7) cannot be placed [-, data*model] on mesh (data=2, model=4)"
        in message
    )


def test_many_errors_are_counted(tmp_path: Path) -> None:
    data = json.loads(to_json(example()))
    data["report"]["inputs"] = [{}] * 10
    assert "and 47 more" in refused(tmp_path / "plan.json", json.dumps(data))


def flip(node: Any, position: int) -> tuple[Any, int]:
    """`node` with its leaf number `position` replaced by a dict, and how many leaves remain to skip."""
    if isinstance(node, dict):
        items: Any = {}
        for key, value in node.items():
            items[key], position = flip(value, position)
        return items, position
    if isinstance(node, list):
        out: list[Any] = []
        for value in node:
            new, position = flip(value, position)
            out.append(new)
        return out, position
    return ({"flipped": 1} if position == 0 else node), position - 1


def test_every_leaf_of_another_type_is_refused(tmp_path: Path) -> None:
    data = json.loads(to_json(example()))
    _, rest = flip(data, 10**6)
    leaves = 10**6 - rest
    assert leaves > 100
    for position in range(leaves):
        flipped, _ = flip(data, position)
        refused(tmp_path / "plan.json", json.dumps(flipped))


def test_no_file_a_directory_and_no_permission(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="no such file or directory"):
        load(tmp_path / "gone.json")
    with pytest.raises(PlanFileError, match="is a directory"):
        load(tmp_path)
    with pytest.raises(PlanFileError, match=r"cannot be written to .*is a directory"):
        dump(example(), tmp_path)
    with pytest.raises(PlanFileError, match="cannot be written"):
        dump(example(), tmp_path / "gone" / "plan.json")
    assert os.listdir(tmp_path) == []


def test_a_file_that_contradicts_itself_cannot_be_made() -> None:
    file = example()
    with pytest.raises(ValidationError, match="the report is for mesh"):
        plan_file(file.plan, replace(file.report, mesh=(("x", 8),)), file.cluster, file.signature)


def test_hops_by_name_as_older_files_have_them_are_read() -> None:
    for name, hop in (("next", NEXT), ("previous", PREVIOUS), ("mirror", MIRROR)):
        fields = {"kind": "permute", "axes": ("x",), "size_bytes": 4, "tensor": 0, "hop": name}
        packed = PackedStrategy.model_validate_json(
            json.dumps({"ins": [], "outs": [], "factors": [], "split": 1, "exchanges": [fields]})
        )
        assert packed.exchanges[0].hop == hop
