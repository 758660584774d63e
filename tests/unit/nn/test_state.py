"""A model's tensors have names, can be replaced by name, and survive a file."""

from __future__ import annotations

import collections
import dataclasses
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest

from tinycore import Tensor, dtypes, nn
from tinycore.engine.engine import Engine
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    FileFormatError,
    OutOfMemory,
    ShapeError,
)
from tinycore.nn.optim import SGD
from tinycore.nn.state import (
    COUNTS_CALLERS,
    Opaque,
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_load_metadata,
    safe_save,
)


class Pair(NamedTuple):
    left: Tensor
    right: list[Tensor]


class Model:
    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 3), Tensor.relu, nn.BatchNorm(3)]
        self.table = {"a": Tensor([1.0]), 7: Tensor([2.0])}
        self.pair = Pair(Tensor([3.0]), [Tensor([4.0])])
        self.count, self.nothing = 3, None


def test_names_are_paths() -> None:
    assert list(get_state_dict(Model())) == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.2.weight",
        "layers.2.bias",
        "layers.2.num_batches_tracked",
        "layers.2.running_mean",
        "layers.2.running_var",
        "table.a",
        "table.7",
        "pair.left",
        "pair.right.0",
    ]


class Slotted:
    """A part in slots, one of which is private, and one has nothing in it."""

    __slots__ = ("__hidden", "bias", "empty", "weight")

    def __init__(self) -> None:
        self.bias, self.weight, self.__hidden = Tensor([1.0]), Tensor([2.0]), Tensor([3.0])


class Both(Slotted):
    """A part with slots below, a dict, and a slot of its base hidden by a property."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Tensor([4.0])

    @property
    def empty(self) -> None:
        raise AssertionError("a property is not read")


@dataclasses.dataclass(slots=True)
class Record:
    """A dataclass in slots."""

    second: Tensor
    first: Tensor


class Layers(list[Any]):
    """A list with an attribute."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.scale = Tensor([1.0])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Slotted, ["_Slotted__hidden", "bias", "weight"]),
        (Both, ["scale", "_Slotted__hidden", "bias", "weight"]),
        (lambda: Record(Tensor([1]), Tensor([2])), ["second", "first"]),
        (lambda: collections.deque([Tensor([1]), [Tensor([2])]]), ["0", "1.0"]),
        (lambda: Layers([Tensor([1])]), ["0", "scale"]),
        (lambda: collections.UserDict(a=Tensor([1])), ["a"]),
        (lambda: types.MappingProxyType({"a": Tensor([1])}), ["a"]),
    ],
)
def test_what_captures_enter_is_entered(make: Any, names: list[str]) -> None:
    found = get_state_dict([make()])

    assert list(found) == [f"0.{name}" for name in names]
    assert get_parameters([make()])[0].shape == (1,)


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: {"a.b": a, "a": {"b": b}},
        lambda a, b: {1: a, "1": b},
        lambda a, b: [{None: a, "None": b}],
        lambda a, b: {"a": [a], "a.0": b},
    ],
)
def test_paths_that_spell_alike_are_refused(make: Any) -> None:
    one, other = Tensor([1.0]), Tensor([2.0])
    for call in (get_state_dict, get_parameters):
        with pytest.raises(ArgumentError, match="two tensors have the path"):
            call(make(one, other))
    assert len(get_state_dict(make(one, one))) == 1


def test_a_tensor_in_a_set_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"the set 'parts' has no order"):
        get_state_dict({"parts": {Tensor([1.0])}})
    assert not get_state_dict({"names": {"a", 1}})


def test_objects_beside_the_weights_cost_little() -> None:
    """A lattice of objects has 2**60 paths, of which none leads to a tensor."""
    beside: Any = []
    for _ in range(60):
        beside = [beside, {"again": beside}]
    assert list(get_state_dict({"beside": beside, "w": Tensor([1])})) == ["w"]


@pytest.mark.parametrize("given", [None, 3, [("w", 1)]])
def test_a_state_that_is_no_mapping_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="a mapping from names to tensors"):
        load_state_dict(nn.Linear(2, 1), given)


@pytest.mark.parametrize("given", [None, Opaque("a.Weight")])
def test_a_value_that_is_no_tensor_is_refused(given: Any) -> None:
    layer = nn.Linear(2, 1, bias=False)
    with pytest.raises(ArgumentTypeError, match="'weight' is no tensor in the state"):
        load_state_dict(layer, {"weight": given})


def test_a_prefix_goes_before_the_path() -> None:
    assert list(get_state_dict({"w": Tensor([1.0])}, prefix="net.")) == ["net.w"]
    assert list(get_state_dict(Tensor([1.0]), prefix="w.")) == ["w"]


def test_a_shared_tensor_has_two_names() -> None:
    shared = Tensor([1.0])

    assert get_state_dict({"a": shared, "b": shared}) == {"a": shared, "b": shared}


def test_a_circle_is_walked_once() -> None:
    model: dict[str, Any] = {"w": Tensor([1.0])}
    model["itself"] = model

    assert list(get_state_dict(model)) == ["w"]


def test_another_class_can_be_collected() -> None:
    assert get_state_dict({"n": [1, "two"]}, tensor_type=str) == {"n.1": "two"}


def test_parameters_are_the_values() -> None:
    layer = nn.Linear(2, 3)

    assert get_parameters(layer) == [layer.weight, layer.bias]


def state(**tensors: Tensor) -> dict[str, Tensor]:
    return {"weight": Tensor.ones(3, 2), "bias": Tensor.ones(3)} | tensors


def test_arrays_of_other_libraries_are_loaded() -> None:
    torch = pytest.importorskip("torch")
    theirs, layer, other = torch.nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(2, 3)

    load_state_dict(layer, theirs.state_dict(), verbose=False)
    load_state_dict(other, {n: t.numpy() for n, t in theirs.state_dict().items()}, verbose=False)
    x = numpy.ones((1, 2), "float32")

    expected = theirs(torch.from_numpy(x)).detach().numpy()
    numpy.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, rtol=1e-6)
    numpy.testing.assert_allclose(other(Tensor(x)).numpy(), expected, rtol=1e-6)
    layer.weight.assign(0.0 * layer.weight).realize()
    assert theirs.weight.abs().sum() > 0, "it has memory of its own"


def test_loading_replaces_values_and_dtypes() -> None:
    layer = nn.Linear(2, 3)

    loaded = load_state_dict(layer, state(weight=Tensor.ones(3, 2).half()), verbose=False)

    assert layer.weight.tolist() == [[1, 1]] * 3
    assert layer.weight.dtype is dtypes.float16
    assert loaded == [layer.weight, layer.bias]


def test_a_missing_tensor_is_named_and_nothing_changes() -> None:
    layer = nn.Linear(2, 3)
    before = layer.weight.tolist()

    with pytest.raises(ArgumentError, match="lacks 'bias' of the model's 2 tensors"):
        load_state_dict(layer, {"weight": Tensor.ones(3, 2)}, verbose=False)

    assert layer.weight.tolist() == before


def test_without_strict_a_missing_tensor_stays() -> None:
    layer = nn.Linear(2, 3)

    assert load_state_dict(layer, {"bias": Tensor.ones(3)}, strict=False) == [layer.bias]


def test_a_wrong_shape_is_named_and_nothing_changes() -> None:
    layer = nn.Linear(2, 3)
    before = layer.weight.tolist()

    with pytest.raises(ShapeError, match=r"'bias' has shape \(3,\) in the model, but \(4,\)"):
        load_state_dict(layer, state(bias=Tensor.ones(4)), verbose=False)

    assert layer.weight.tolist() == before


def test_a_single_number_may_have_an_axis() -> None:
    model = {"n": Tensor(0.0)}

    load_state_dict(model, {"n": Tensor([5.0])})

    assert model["n"].shape == ()
    assert model["n"].item() == 5


def test_what_has_no_place_is_told() -> None:
    with pytest.warns(UserWarning, match="no place for 'extra'") as told:
        load_state_dict(nn.Linear(2, 3), state(extra=Tensor([1.0])))
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_state_dict(nn.Linear(2, 3), state(extra=Tensor([1.0])), verbose=False)


@pytest.mark.parametrize("realizes", [True, False])
@pytest.mark.parametrize("kind", [OutOfMemory, KeyboardInterrupt])
def test_what_ends_it_half_way_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], realizes: bool
) -> None:
    model = {"a": Tensor([1.0, 2.0]).realize(), "b": Tensor([3.0]) * 2, "c": Tensor([4.0])}
    part = model["a"][1:]
    given = {"a": Tensor([7.0, 8.0]), "b": Tensor([9.0]) * 1, "c": Tensor([5.0])}
    take_over, left = Tensor._take_over, [2]

    def ended(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise kind
        take_over(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "_take_over", ended)
        with pytest.raises(kind):
            load_state_dict(model, given, verbose=False, realize=realizes)

    assert [t.tolist() for t in (*model.values(), part)] == [[1.0, 2.0], [6.0], [4.0], [2.0]]
    model["a"].assign(Tensor([0.0, 0.5]))
    assert part.tolist() == [0.5]
    load_state_dict(model, given, verbose=False, realize=realizes)
    assert [t.tolist() for t in model.values()] == [[7.0, 8.0], [9.0], [5.0]]


def test_consume_takes_out_what_was_loaded() -> None:
    given = state(extra=Tensor([1.0]))

    load_state_dict(nn.Linear(2, 3), given, verbose=False, consume=True)

    assert list(given) == ["extra"]


@pytest.mark.parametrize("realize", [True, False])
@pytest.mark.parametrize(
    "make",
    [lambda x: x, lambda x: x + 1, lambda x: x.clone(), lambda x: x[:2], lambda x: x.detach()],
)
def test_tensors_loaded_from_one_are_no_views_of_it(
    realize: bool, make: Callable[[Tensor], Tensor]
) -> None:
    first, second = ({"w": Tensor([0.0, 0.0]), "v": Tensor([0.0, 0.0])} for _ in range(2))
    value = make(Tensor([3.0, 4.0]).realize())
    expected = value.tolist()

    for model in (first, second):
        load_state_dict(model, {"w": value, "v": value}, realize=realize)
    first["w"].assign(first["w"] * 0)
    value[0] = 9.0

    assert [t.tolist() for t in (first["v"], *second.values())] == [expected] * 3


def test_a_model_loaded_from_another_is_trained_apart_from_it() -> None:
    trained, target = {"w": Tensor([3.0, 4.0]).realize()}, {"w": Tensor([0.0, 0.0])}
    load_state_dict(target, get_state_dict(trained))

    optimizer = SGD([trained["w"]], lr=1.0)
    load_state_dict(target, get_state_dict(trained))
    with Tensor.train():
        (trained["w"] * 2).sum().backward()
        optimizer.step()

    assert (trained["w"].tolist(), target["w"].tolist()) == ([1.0, 2.0], [3.0, 4.0])
    assert target["w"].grad is None


def test_what_nobody_holds_after_it_is_loaded_is_not_copied() -> None:
    model, given = {"w": Tensor([0.0, 0.0])}, {"w": Tensor([3.0, 4.0]).realize()}
    memory = given["w"].uop

    load_state_dict(model, given, consume=True)

    assert model["w"].uop is memory


@pytest.mark.skipif(not COUNTS_CALLERS, reason="references of callers are not counted")
def test_a_state_dict_that_is_no_variable_is_not_copied() -> None:
    model = {"w": Tensor([0.0, 0.0])}
    memory = []

    def given() -> dict[str, Tensor]:
        found = {"w": Tensor([3.0, 4.0]).realize()}
        memory.append(found["w"].uop)
        return found

    load_state_dict(model, given())

    assert model["w"].uop is memory[0]


@pytest.mark.parametrize("realize", [True, False])
@pytest.mark.parametrize(
    "make", [lambda x: x.clone().realize(), lambda x: x.clone(), lambda x: x + 1]
)
def test_a_state_dict_is_loaded_again_after_the_model_was_trained(
    make: Callable[[Tensor], Tensor], realize: bool
) -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(get_parameters(model), lr=1.0)
    best = {name: make(tensor) for name, tensor in get_state_dict(model).items()}
    expected = {name: tensor.tolist() for name, tensor in best.items()}

    for _ in range(2):
        load_state_dict(model, best, realize=realize)
        assert {name: t.tolist() for name, t in get_state_dict(model).items()} == expected
        with Tensor.train():
            optimizer.zero_grad()
            model(Tensor([[3.0, 4.0]])).sum().backward()
            optimizer.step()

    assert {name: tensor.tolist() for name, tensor in best.items()} == expected


# --- files


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_every_dtype_survives_a_file(tmp_path: Path, dtype: Any) -> None:
    tensor = Tensor([[0, 1, 2], [1, 0, 1]]).cast(dtype)

    safe_save({"w": tensor}, tmp_path / "m")
    loaded = safe_load(tmp_path / "m")["w"]

    assert loaded.dtype is dtype
    assert loaded.tolist() == tensor.tolist()


def test_a_model_survives_a_file(tmp_path: Path) -> None:
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)

    safe_save(get_state_dict(first), tmp_path / "m")
    load_state_dict(second, safe_load(tmp_path / "m"), verbose=False)

    assert second.weight.tolist() == first.weight.tolist()


def test_metadata_is_kept_as_text(tmp_path: Path) -> None:
    safe_save({"w": Tensor([1.0])}, tmp_path / "m", {"format": "pt", "steps": 3})

    content, data_start, header = safe_load_metadata(tmp_path / "m")

    assert header["__metadata__"] == {"format": "pt", "steps": "3"}
    assert header["w"] == {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    assert content.shape == (data_start + 4,)


def test_the_bytes_of_a_file_can_be_loaded(tmp_path: Path) -> None:
    safe_save({"w": Tensor([1.0, 2.0])}, tmp_path / "m")
    content = Tensor(numpy.fromfile(tmp_path / "m", numpy.uint8))

    assert safe_load(content)["w"].tolist() == [1, 2]


def test_saving_over_the_file_that_was_loaded(tmp_path: Path) -> None:
    safe_save({"w": Tensor([1.0, 2.0])}, tmp_path / "m")
    loaded = safe_load(tmp_path / "m")

    safe_save({"w": loaded["w"] + 1}, tmp_path / "m")

    assert loaded["w"].tolist() == [1, 2]
    assert safe_load(tmp_path / "m")["w"].tolist() == [2, 3]


def test_a_malformed_file_names_itself(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"not one")

    with pytest.raises(FileFormatError, match="7 bytes cannot hold"):
        safe_load(tmp_path / "m")


@pytest.mark.sample(4)
@pytest.mark.parametrize("consume", [True, False])
@pytest.mark.parametrize("count", [4, 40])
def test_a_model_of_many_tensors_is_loaded_in_one_run(
    monkeypatch: pytest.MonkeyPatch, count: int, consume: bool
) -> None:
    """A run looks at all tensors that wait: one for each would be quadratic in their number."""
    model = {str(n): Tensor.rand(2, 2) for n in range(count)}
    given = {str(n): Tensor.full((2, 2), float(n)).clone() for n in range(count)}
    runs, realize = [], Engine.realize

    def counted(*arguments: Any) -> Any:
        runs.append(arguments)
        return realize(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "realize", counted)
        load_state_dict(model, given, consume=consume)

    assert len(runs) == 1
    assert [x.tolist() for x in model.values()] == [[[float(n)] * 2] * 2 for n in range(count)]


def test_what_is_consumed_is_computed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory of what was loaded is freed on the way."""
    monkeypatch.setattr("tinycore.nn.state.LEAST_BATCH", 32)
    model = {str(n): Tensor.rand(4) for n in range(8)}
    given = {str(n): Tensor.full((4,), float(n)).clone() for n in range(8)}
    sizes, realize = [], Tensor.realize

    def counted(*tensors: Tensor) -> Tensor:
        sizes.append(len(tensors))
        return realize(*tensors)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "realize", counted)
        load_state_dict(model, given, consume=True)

    assert sizes == [2, 2, 2, 2]
    assert model["7"].tolist() == [7.0] * 4


def test_a_module_beside_the_weights_is_not_entered() -> None:
    class Layer:
        def __init__(self) -> None:
            self.weight, self.numpy = Tensor([1.0]), numpy

    assert list(nn.state.get_state_dict(Layer())) == ["weight"]
