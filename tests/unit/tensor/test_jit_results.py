"""TinyJit and the memory of results: a replay uses it again when nobody can see it."""

from __future__ import annotations

import gc
import pickle
import re
import threading
import weakref
from collections.abc import Callable

import numpy
import pytest

from tinycore import Context, Device, GlobalCounters, Tensor, TinyJit
from tinycore.device.buffer import Buffer
from tinycore.errors import GradientError
from tinycore.schedule.device_memory import buffer_of
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.capture import recorded_call


def memory(tensor: Tensor) -> Buffer:
    return buffer_of(buffers_below(tensor.uop)[0])


def host(*values: float) -> Tensor:
    return Tensor([float(v) for v in values]).realize()


def doubled() -> TinyJit[[Tensor], Tensor]:
    """A function that is captured already."""
    step: TinyJit[[Tensor], Tensor] = TinyJit(lambda x: (x * 2).realize())
    for _ in range(2):
        step(host(1, 2))
    return step


def test_a_result_that_is_gone_is_computed_in_again() -> None:
    step = doubled()
    before = weakref.ref(memory(step(host(1, 2))))

    after = step(host(3, 4))

    assert memory(after) is before()
    assert after.tolist() == [6.0, 8.0]


def test_results_that_replace_each_other_take_two_buffers() -> None:
    step = doubled()
    result, seen = step(host(0, 0)), set[int]()
    for number in range(6):
        result = step(host(number, 1))
        seen.add(id(memory(result)))
        assert result.tolist() == [2.0 * number, 2.0]

    assert len(seen) == 2


def test_a_result_is_the_argument_of_the_next_call() -> None:
    step = doubled()
    x = host(1, 3)
    for _ in range(6):
        x = step(x)

    assert x.tolist() == [64.0, 192.0]


def test_what_is_seen_of_a_result_stays() -> None:
    step = doubled()
    kept, part, lazy = step(host(1, 2)), step(host(3, 4))[1:2], step(host(5, 6)) * 10
    turned, pair = step(host(7, 8)).reshape(2, 1), (step(host(9, 10)), step(host(11, 12)))
    for number in range(5):
        step(host(number, number))

    assert kept.tolist() == [2.0, 4.0]
    assert part.tolist() == [8.0]
    assert lazy.tolist() == [100.0, 120.0]
    assert turned.tolist() == [[14.0], [16.0]]
    assert [t.tolist() for t in pair] == [[18.0, 20.0], [22.0, 24.0]]


def test_arrays_over_a_result_stay() -> None:
    step = doubled()
    if not memory(step(host(1, 2))).is_mapped:
        pytest.skip("the host does not see memory of this device")
    shown = numpy.from_dlpack(step(host(1, 2)))
    held = memory(step(host(3, 4))).as_memoryview()
    for number in range(5):
        step(host(number, number))

    assert shown.tolist() == [2.0, 4.0]
    assert numpy.frombuffer(held, numpy.float32).tolist() == [6.0, 8.0]


def test_a_result_in_a_cycle_of_garbage_stays_until_it_is_collected() -> None:
    step = doubled()
    cycle: list[object] = [step(host(1, 2))]
    cycle.append(cycle)
    reference = weakref.ref(memory(cycle[0]))  # type: ignore[arg-type]
    del cycle

    assert memory(step(host(5, 6))) is not reference()
    gc.collect()


def test_cached_values_of_a_result_are_forgotten() -> None:
    step, weight = doubled(), Tensor([3.0, 4.0], requires_grad=True).realize()
    sums = []
    for number in (1.0, 2.0, 3.0):
        result = step(host(number, number))
        product = result * weight
        assert product.tolist() == [6 * number, 8 * number]  # read: its value is cached
        product.sum().backward()
        assert weight.grad is not None
        sums.append(weight.grad.tolist())
        weight.grad = None
        del result, product

    assert sums == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]


def test_a_result_that_was_written_to_has_its_gradient() -> None:
    step, weight = doubled(), Tensor([3.0, 4.0], requires_grad=True).realize()
    written = step(host(1, 1))
    written.assign(written * weight).realize()
    del written
    for number in (1.0, 2.0):
        result = step(host(number, number))
        (result * weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [2 * number, 2 * number]
        weight.grad = None


def test_a_result_whose_memory_was_freed_is_computed_elsewhere() -> None:
    step = doubled()
    for number in range(4):
        step(host(number, 1))
    memory(step(host(5, 1))).deallocate()
    taken = host(7, 8)  # which may lie where the result was

    assert step(host(3, 4)).tolist() == [6.0, 8.0]
    assert taken.tolist() == [7.0, 8.0]


def test_an_argument_in_memory_of_others_is_launched_on() -> None:
    step = doubled()
    for number in range(4):
        step(host(number, 1))
    array = numpy.array([0.0, 2.0, 3.0, 4.0], numpy.float32)

    assert step(Tensor.from_dlpack(array[1:3])).tolist() == [4.0, 6.0]
    assert step(host(3, 4)).tolist() == [6.0, 8.0]


def test_replays_into_kept_memory_are_shown_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    step = doubled()
    for number in range(4):
        step(host(number, 1))
    x, before = host(3, 4), GlobalCounters.kernel_count

    step(x)
    with Context(DEBUG=2):
        step(x)

    assert GlobalCounters.kernel_count == before + 2
    assert len(re.findall(r"^run .*jit", capfd.readouterr().err, re.MULTILINE)) == 1


def test_several_results_and_views_are_used_again_together() -> None:
    @TinyJit
    def both(x: Tensor) -> dict[str, Tensor]:
        y = (x + 1).contiguous().realize()
        return {"whole": y, "first": y[:1], "other": (x * 3).realize()}

    for number in range(6):
        found = both(host(number, 5))
        seen = found["first"] if number % 2 else found["whole"]
        other = weakref.ref(memory(found["other"]))
        del found
        again = both(host(-1, -1))
        assert seen.tolist() == ([number + 1.0] if number % 2 else [number + 1.0, 6.0])
        assert again["other"].tolist() == [-3.0, -3.0]
        del again, seen
        if number > 2:
            assert memory(both(host(0, 0))["other"]) is other()  # seen is gone: all is used again


def test_each_thread_sees_its_own_results() -> None:
    step, wrong = doubled(), list[float]()

    def work(number: float) -> None:
        for _ in range(50):
            found = step(host(number, number)).tolist()
            if found != [2 * number, 2 * number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_tensors_of_a_result_are_new_in_each_call() -> None:
    step = doubled()

    def ask(x: Tensor) -> None:
        x.requires_grad_().requires_grad_(None)

    def differentiate(x: Tensor) -> None:
        x.grad = host(1, 1)

    def look(x: Tensor) -> None:
        known[x] = "a result"

    def refuse(x: Tensor) -> None:
        x.requires_grad_(False)

    def move(x: Tensor) -> None:
        x.replace(host(8, 8))

    known = weakref.WeakKeyDictionary[Tensor, str]()
    for change in (ask, differentiate, look, refuse, move, lambda x: x.assign(host(5, 5))) * 2:
        change(step(host(1, 2)))
        again = step(host(3, 4))
        assert again.tolist() == [6.0, 8.0]
        assert (again.grad, again.requires_grad) == (None, None)
        assert again not in known
        assert not hasattr(again, "_asked")
        del again

    reference = weakref.ref(step(host(1, 2)))
    assert reference() is None


def test_a_result_that_asked_for_a_gradient_and_is_gone_gets_none() -> None:
    step, weight = doubled(), host(3, 4)
    for number in (1.0, 2.0, 3.0):
        result = step(host(number, 1)).requires_grad_()
        loss = (result * weight).sum()
        del result

        loss.backward()

        assert weight.grad is not None
        assert weight.grad.tolist() == [2 * number, 2.0]
        weight.grad = None


def test_nothing_is_computed_from_a_result_that_is_made_later() -> None:
    step, memories = doubled(), set[int]()
    for number in (1.0, 2.0, 3.0):
        former = step(host(number, 1))
        memories.add(id(memory(former)))
        scale = (former * 3).realize()
        del former
        result = step(host(5, 6)).requires_grad_()
        memories.add(id(memory(result)))

        (result * scale).sum().backward()

        assert result.grad is not None
        assert result.grad.tolist() == [6 * number, 6.0]
        del result

    assert len(memories) == 1


def test_gradients_that_end_at_a_result_of_a_result_are_refused() -> None:
    first, second, weight = doubled(), doubled(), host(1, 1)
    scaled: TinyJit[[Tensor], Tensor] = TinyJit(lambda x: (x * weight).realize())
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda x: second(first(x)),
        lambda x: second((x * 2).realize()),
        lambda x: second(x * 2),
        lambda x: [weight.assign((x * 2).realize()), scaled(host(1, 1))][1],
    ]
    for way in ways:
        for _ in range(4):
            x = host(1, 2)
            result = way(x)
            with pytest.raises(GradientError, match="realize"):
                result.sum().gradient(x)

    written = host(1, 1)
    written.assign(written * weight)
    assert written.tolist() == weight.tolist()
    with pytest.raises(GradientError, match="realize"):  # which knows its graph
        second(written).sum().gradient(written)


def test_gradients_that_end_at_a_result_are_refused_for_the_arguments_of_each_call() -> None:
    step, given = doubled(), [host(1, 2).requires_grad_(), host(3, 4).requires_grad_()]
    other = host(5, 6)
    for x in given:
        step(other)
        step(x)
    for x in (given[0], given[0], given[1]):
        step(other)
        with pytest.raises(GradientError):
            step(x).sum().gradient(x)


def test_a_failure_leaves_results_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    step = doubled()
    kept = step(host(1, 2))
    step(host(3, 4))
    assert step.captured is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(step.captured), "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(host(5, 6))

    assert step(host(7, 8)).tolist() == [14.0, 16.0]
    assert kept.tolist() == [2.0, 4.0]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_freed_intermediates_are_freed_with_results() -> None:
    step = doubled()
    reference = weakref.ref(memory(step(host(1, 2))))
    assert reference() is not None
    assert step.captured is not None

    step.captured.free_intermediates()

    assert reference() is None
    assert step(host(3, 4)).tolist() == [6.0, 8.0]


def test_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_call, "MOST_KEPT_BYTES", 7)
    step = doubled()

    reference = weakref.ref(memory(step(host(1, 2))))

    assert reference() is None


def test_kernel_by_kernel_and_from_another_process() -> None:
    step = doubled()
    step(host(1, 2))
    again = pickle.loads(pickle.dumps(step))
    with Context(JIT=2):
        found = [step(host(n, n)).tolist() for n in (1, 2, 3)]

    assert found == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]
    assert [again(host(n, n)).tolist() for n in (1, 2, 3)] == found


def test_the_result_of_a_training_step_is_computed_in_again() -> None:
    weight, seen = Tensor([1.0, 2.0], requires_grad=True).realize(), dict[str, Tensor]()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        seen["product"] = weight * x
        loss = seen["product"].sum()
        loss.backward()
        return loss.realize()

    losses, memories, products = [], set[int](), []
    for number in range(8):
        loss = step(host(number, 1))
        losses.append(loss.item())
        products.append(seen["product"])
        assert weight.grad is not None
        assert weight.grad.tolist() == [float(number), 1.0]
        if number > 2:
            memories.add(id(memory(loss)))
        del loss

    assert losses == [number + 2.0 for number in range(8)]
    assert [p.tolist() for p in products] == [[float(n), 2.0] for n in range(8)]
    assert len(memories) == 1


def test_a_result_that_is_left_outside_too_is_not_kept() -> None:
    seen = dict[str, Tensor](last=host(0, 0))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        seen["last"] = (x * 2).realize()
        return seen["last"]

    lasts = []
    for number in range(6):
        result = step(host(number, 1))
        lasts.append(seen["last"])
        del result

    assert [t.tolist() for t in lasts] == [[2.0 * n, 2.0] for n in range(6)]


@pytest.mark.parametrize("change", ["shape", "dtype", "flag", "gradient", "setting", "twice"])
def test_calls_of_another_kind_are_told_from_the_last(change: str) -> None:
    weight = host(1, 1)
    step = TinyJit(lambda x, y: (x * 2 + y).realize())
    for _ in range(4):
        assert step(host(1, 2), weight).tolist() == [3.0, 5.0]
    captures = len(step.captures)
    x, y = host(1, 2), weight
    if change == "shape":
        x = host(1, 2).reshape(2, 1)
    elif change == "dtype":
        x = Tensor([1, 2]).realize()
    elif change == "flag":
        x.requires_grad_(True)
    elif change == "gradient":
        x.grad = host(0, 0)
    elif change == "twice":
        y = x
    with Context(TRAINING=change == "setting"):
        step(x, y)

    assert len(step.captures) == captures + 1
    assert step(host(1, 2), weight).tolist() == [3.0, 5.0]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("is_left", [False, True])
def test_a_result_asks_for_a_gradient_in_each_call(asks: bool, is_left: bool) -> None:
    class Kept:
        value: Tensor | None = None

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 3).requires_grad_(asks)
        if is_left:
            Kept.value = y
        return x * 2, x if is_left else y

    for _ in range(4):
        c, y = step(host(1, 2).requires_grad_(False))  # else it misses what the call ended
        tensor = y if Kept.value is None else Kept.value
        assert tensor.requires_grad is asks
        (tensor * c).sum().backward()
        assert (None if tensor.grad is None else tensor.grad.tolist()) == ([2, 4] if asks else None)


def test_a_result_tells_of_others_that_it_was_computed_from_in_each_call() -> None:
    @TinyJit
    def step(x: Tensor) -> list[Tensor]:
        plain, asking = x * 3, (x * 4).requires_grad_()
        return [plain, (plain * 2).realize(), asking, asking * 2, x * 5]

    for _ in range(4):
        plain, of_plain, asking, of_asking, beside = step(host(1, 2))
        with pytest.raises(GradientError, match="realize"):
            of_plain.sum().gradient(plain)
        with pytest.raises(GradientError, match="realize"):
            of_asking.sum().backward()
        assert beside.sum().gradient(plain)[0].tolist() == [0, 0]
        (beside * asking).sum().backward()
        assert (None if asking.grad is None else asking.grad.tolist()) == [5, 10]


def test_a_gradient_that_was_left_on_several_devices_is_that_of_its_call() -> None:
    """Each part is a whole buffer: none is written to by later replays alone."""
    devices = tuple(f"{Device.DEFAULT}:{n}" for n in range(2))
    bias = Tensor([1.0, 2.0, 3.0, 4.0]).shard(devices, 0).realize().requires_grad_()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        for leaf in (bias,):
            leaf.grad = None
        loss = (bias * x).sum()
        loss.backward()
        Tensor.realize(loss, *[] if bias.grad is None else [bias.grad])
        return loss

    for call in range(6):
        step(Tensor.full((4,), float(call), buffer=True).shard(devices, 0).realize())

    assert bias.grad is not None
    assert bias.grad.tolist() == [5.0] * 4


def test_a_capture_holds_no_inputs_of_layers_that_are_done() -> None:
    size, layers = 1 << 16, 12

    @TinyJit
    def network(x: Tensor) -> Tensor:
        for number in range(layers):
            x = (x * 1.5 + number).realize()
        return x

    x = Tensor.ones(size).contiguous().realize()
    wanted = network(x).numpy()
    gc.collect()
    before = GlobalCounters.mem_used
    GlobalCounters.reset()

    found = network(x)

    assert GlobalCounters.mem_peak - before <= 4 * 4 * size
    assert numpy.array_equal(found.numpy(), wanted)
    assert numpy.array_equal(network(x).numpy(), wanted)


def test_parts_and_versions_of_what_a_function_drops_are_replayed() -> None:
    @TinyJit
    def network(x: Tensor) -> Tensor:
        y = (x + 1).realize()
        part = y[1:3]  # a view of memory that nothing else shows soon
        z = (part * 2).realize()
        del y
        filler = [(x * n).realize() for n in range(3)]  # would take memory that was freed
        w = (x * 3).realize()
        w += 1
        w.realize()
        w[:1] = 7
        total = (part.sum() + z.sum() + w.sum()).realize()
        del part, z, w
        return (total + Tensor.cat(*filler).sum()).realize()

    for number in range(6):
        found = network(host(number, 2, 3, 4)).item()
        assert found == 7 + 14 + (7 + 7 + 10 + 13) + 3 * (number + 9)


def writes_host_data(x: Tensor) -> Tensor:
    data = Tensor(numpy.array([4, 1], numpy.float32))
    data.assign(data * 0.5 + 1)
    return data + x


def writes_part_of_host_data(x: Tensor) -> Tensor:
    data = Tensor([4.0, 1.0]).realize()
    data[1:] += x[:1]
    return data


def returns_view_of_host_data(x: Tensor) -> list[Tensor]:
    data = Tensor([4.0, 1.0]).realize()
    return [data + x, data[1:], x * data]


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize(
    "function", [writes_host_data, writes_part_of_host_data, returns_view_of_host_data]
)
def test_data_of_the_host_are_new_in_each_call(
    function: Callable[[Tensor], Tensor | list[Tensor]], prune: bool
) -> None:
    def seen(step: Callable[[Tensor], Tensor | list[Tensor]]) -> list[object]:
        results = []
        for call in range(5):
            result = step(host(call, 1))
            results += result if isinstance(result, list) else [result]
            for each in results:
                each += 10
        return [each.tolist() for each in results]

    assert seen(TinyJit(function, prune=prune)) == seen(function)


def test_data_of_the_host_that_are_read_alone_are_not_copied() -> None:
    step = TinyJit(lambda x: x * Tensor(numpy.array([4, 1], numpy.float32)))

    assert [step(host(n, 1)).tolist() for n in range(4)] == [[4 * n, 1] for n in range(4)]
    assert step.captured is not None
    assert len(step.captured.items) == 1
    again: TinyJit[[Tensor], Tensor] = pickle.loads(pickle.dumps(step))
    assert again(host(7, 1)).tolist() == [28, 1]
