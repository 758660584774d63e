"""Steps of training, from the forward pass to new weights, and a transformer's forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from benchmarks.case import TENSOR, Case, Input, Kind

__all__ = ["CASES"]

_BATCH: Final = 128
_RATE: Final = 0.01


def _step_tiny(forward: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """A step of stochastic gradient descent: x, labels, then weights."""

    def build(tiny: Any, x: Any, labels: Any, *weights: Any) -> Callable[[], Any]:
        optimizer = tiny.nn.optim.SGD([weight.is_param_() for weight in weights], lr=_RATE)

        def step() -> Any:
            with tiny.Context(TRAINING=1):
                optimizer.zero_grad()
                loss = forward(x, *weights).sparse_categorical_crossentropy(labels).backward()
                return loss.realize(*optimizer.schedule_step())

        return step

    return build


def _step_torch(forward: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    def build(torch: Any, x: Any, labels: Any, *weights: Any) -> Callable[[], Any]:
        for weight in weights:
            weight.requires_grad_()
        optimizer = torch.optim.SGD(weights, lr=_RATE)

        def step() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(forward(torch, x, *weights), labels)
            loss.backward()
            optimizer.step()
            return loss

        return step

    return build


def _step_jax(forward: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """The state is what a step returned last; its memory is given to the next one."""

    def build(jax: Any, x: Any, labels: Any, *weights: Any) -> Callable[[], Any]:
        def loss_of(weights: Any) -> Any:
            chances = jax.nn.log_softmax(forward(jax, x, *weights))
            return -jax.numpy.take_along_axis(chances, labels[:, None], 1).mean()

        def updated(weights: Any) -> tuple[Any, Any]:
            loss, slopes = jax.value_and_grad(loss_of)(weights)
            return loss, [w - _RATE * slope for w, slope in zip(weights, slopes, strict=True)]

        run = jax.jit(updated, donate_argnums=0)
        state = list(weights)

        def step() -> Any:
            loss, state[:] = run(state)
            return jax.block_until_ready((loss, state))[0]

        return step

    return build


def _mlp(x: Any, *w: Any) -> Any:
    return ((x @ w[0]).relu() @ w[1]).relu() @ w[2]


def _mlp_jax(jax: Any, x: Any, *w: Any) -> Any:
    return jax.nn.relu(jax.nn.relu(x @ w[0]) @ w[1]) @ w[2]


def _cnn_tiny(x: Any, *w: Any) -> Any:
    x = x.conv2d(w[0]).relu().conv2d(w[1]).relu().max_pool2d((2, 2))
    x = x.conv2d(w[2]).relu().conv2d(w[3]).relu().max_pool2d((2, 2))
    return x.flatten(1) @ w[4]


def _cnn_torch(torch: Any, x: Any, *w: Any) -> Any:
    conv, pool = torch.conv2d, torch.nn.functional.max_pool2d
    x = pool(conv(conv(x, w[0]).relu(), w[1]).relu(), 2)
    x = pool(conv(conv(x, w[2]).relu(), w[3]).relu(), 2)
    return x.flatten(1) @ w[4]


def _cnn_jax(jax: Any, x: Any, *w: Any) -> Any:
    lax, relu = jax.lax, jax.nn.relu

    def conv(x: Any, w: Any) -> Any:
        return relu(lax.conv(x, w, (1, 1), "VALID"))

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jax.numpy.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    x = pool(conv(conv(x, w[0]), w[1]))
    x = pool(conv(conv(x, w[2]), w[3]))
    return x.reshape(x.shape[0], -1) @ w[4]


_MLP_INPUTS: Final = (
    Input((_BATCH, 784)),
    Input((_BATCH,), "int32", limit=10),
    Input((784, 512), scale=0.06),
    Input((512, 512), scale=0.07),
    Input((512, 10), scale=0.07),
)
_CNN_INPUTS: Final = (
    Input((_BATCH, 1, 28, 28)),
    Input((_BATCH,), "int32", limit=10),
    Input((32, 1, 5, 5), scale=0.3),
    Input((32, 32, 5, 5), scale=0.06),
    Input((64, 32, 3, 3), scale=0.1),
    Input((64, 64, 3, 3), scale=0.07),
    Input((576, 10), scale=0.07),
)
_CNN_MULTIPLIES: Final = (
    24 * 24 * 32 * 25 + 20 * 20 * 32 * 32 * 25 + 8 * 8 * 64 * 32 * 9 + 6 * 6 * 64 * 64 * 9
)

_LAYERS, _WIDTH, _HEADS, _LENGTH = 6, 512, 8, 256
_HEAD: Final = _WIDTH // _HEADS
_OF_LAYER: Final = 4


def _heads(x: Any) -> Any:
    return x.reshape(1, _LENGTH, _HEADS, _HEAD).transpose(1, 2)


def _block(x: Any, w: Any, norm: Callable[[Any], Any], attention: Callable[..., Any]) -> Any:
    """One layer: attention, then two linear maps, each on normalized input and added to it."""
    mixed = norm(x) @ w[0]
    queries, keys, values = (_heads(mixed[..., i * _WIDTH : (i + 1) * _WIDTH]) for i in range(3))
    attended = attention(queries, keys, values).transpose(1, 2).reshape(1, _LENGTH, _WIDTH)
    x = x + attended @ w[1]
    return x + (norm(x) @ w[2]).relu() @ w[3]


def _transformer_tiny(tiny: Any, x: Any, *w: Any) -> Any:
    for layer in range(0, len(w), _OF_LAYER):
        x = _block(
            x, w[layer : layer + _OF_LAYER], lambda t: t.layernorm(),
            tiny.Tensor.scaled_dot_product_attention,
        )  # fmt: skip
    return x


def _transformer_torch(torch: Any, x: Any, *w: Any) -> Any:
    functions = torch.nn.functional
    for layer in range(0, len(w), _OF_LAYER):
        x = _block(
            x, w[layer : layer + _OF_LAYER], lambda t: functions.layer_norm(t, (_WIDTH,)),
            functions.scaled_dot_product_attention,
        )  # fmt: skip
    return x


def _transformer_jax(jax: Any, x: Any, *w: Any) -> Any:
    def attention(*given: Any) -> Any:
        q, k, v = (tensor.transpose(0, 2, 1, 3) for tensor in given)
        return jax.nn.dot_product_attention(q, k, v).transpose(0, 2, 1, 3)

    for layer in range(0, len(w), _OF_LAYER):
        x = _block_jax(jax, x, w[layer : layer + _OF_LAYER], attention)
    return x


def _block_jax(jax: Any, x: Any, w: Any, attention: Callable[..., Any]) -> Any:
    """The layer again: arrays of JAX swap axes and clip by other names."""

    def norm(x: Any) -> Any:
        return jax.nn.standardize(x, -1, epsilon=1e-5)

    def heads(x: Any) -> Any:
        return x.reshape(1, _LENGTH, _HEADS, _HEAD).swapaxes(1, 2)

    queries, keys, values = map(heads, jax.numpy.split(norm(x) @ w[0], 3, -1))
    attended = attention(queries, keys, values).swapaxes(1, 2).reshape(1, _LENGTH, _WIDTH)
    x = x + attended @ w[1]
    return x + jax.nn.relu(norm(x) @ w[2]) @ w[3]


_LAYER_INPUTS: Final = (
    Input((_WIDTH, 3 * _WIDTH), scale=0.07),
    Input((_WIDTH, _WIDTH), scale=0.07),
    Input((_WIDTH, 4 * _WIDTH), scale=0.07),
    Input((4 * _WIDTH, _WIDTH), scale=0.04),
)

_SENTENCES, _WORDS, _INSIDE = 8, 64, 1376
_GATED_INPUTS: Final = (
    Input((_SENTENCES, _WORDS, _WIDTH)),
    Input((_SENTENCES,), "int32", limit=10),
    *(Input((_WIDTH, _WIDTH), scale=0.04),) * 4,
    *(Input((_WIDTH, _INSIDE), scale=0.04),) * 2,
    Input((_INSIDE, _WIDTH), scale=0.03),
    Input((_WIDTH, 10), scale=0.07),
)
_GATED_WEIGHTS: Final = 4 * _WIDTH**2 + 3 * _WIDTH * _INSIDE


def _gated(
    x: Any, w: Any, norm: Callable[[Any], Any], attention: Callable[..., Any], silu: Any
) -> Any:
    """A layer whose projections all have weights of their own, and a gate; then ten chances."""
    shape, seen = (_SENTENCES, _WORDS, _HEADS, _HEAD), norm(x)
    queries, keys, values = ((seen @ w[i]).reshape(shape) for i in range(3))
    x = x + attention(queries, keys, values).reshape(x.shape) @ w[3]
    seen = norm(x)
    return (x + (silu(seen @ w[4]) * (seen @ w[5])) @ w[6]).mean(1) @ w[7]


def _gated_tiny(x: Any, *w: Any) -> Any:
    def attention(*given: Any) -> Any:
        q, k, v = (tensor.transpose(1, 2) for tensor in given)
        return q.scaled_dot_product_attention(k, v).transpose(1, 2)

    return _gated(x, w, lambda t: t.layernorm(), attention, lambda t: t.silu())


def _gated_torch(torch: Any, x: Any, *w: Any) -> Any:
    functions = torch.nn.functional

    def attention(*given: Any) -> Any:
        q, k, v = (tensor.transpose(1, 2) for tensor in given)
        return functions.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    return _gated(x, w, lambda t: functions.layer_norm(t, (_WIDTH,)), attention, functions.silu)


def _gated_jax(jax: Any, x: Any, *w: Any) -> Any:
    def norm(x: Any) -> Any:
        return jax.nn.standardize(x, -1, epsilon=1e-5)

    return _gated(x, w, norm, jax.nn.dot_product_attention, jax.nn.silu)


CASES: Final = (
    Case(
        "MLP training step",
        {
            TENSOR: _step_tiny(_mlp),
            "torch": _step_torch(lambda _, *all: _mlp(*all)),
            "jax": _step_jax(_mlp_jax),
        },
        _MLP_INPUTS,
        flops=6.0 * _BATCH * (784 * 512 + 512 * 512 + 512 * 10),
        kind=Kind.STEP,
    ),
    Case(
        "small CNN training step",
        {
            TENSOR: _step_tiny(_cnn_tiny),
            "torch": _step_torch(_cnn_torch),
            "jax": _step_jax(_cnn_jax),
        },
        _CNN_INPUTS,
        flops=6.0 * _BATCH * _CNN_MULTIPLIES,
        kind=Kind.STEP,
    ),
    Case(
        "transformer layer training step",
        {
            TENSOR: _step_tiny(_gated_tiny),
            "torch": _step_torch(_gated_torch),
            "jax": _step_jax(_gated_jax),
        },
        _GATED_INPUTS,
        flops=6.0 * _SENTENCES * _WORDS * _GATED_WEIGHTS,
        kind=Kind.STEP,
    ),
    Case(
        "transformer forward, 6 layers of 512",
        {TENSOR: _transformer_tiny, "torch": _transformer_torch, "jax": _transformer_jax},
        (Input((1, _LENGTH, _WIDTH)), *_LAYER_INPUTS * _LAYERS),
        flops=_LAYERS * 2.0 * _LENGTH * (12 * _WIDTH**2 + 2 * _LENGTH * _WIDTH),
        tolerance=5e-3,
    ),
)
