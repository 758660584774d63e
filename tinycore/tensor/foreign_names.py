"""Names of PyTorch that tinycore does not have, each with the equivalent to use instead.

Floor 5. Asking for one of them, on `Tensor`, `tinycore` or `tinycore.nn`, raises UnknownNameError
with the equivalent; any other unknown name is answered with names of similar spelling: by
`unknown_name` for modules, and by Python for tensors. See
docs/decisions/0056-no-getattr-on-tensors.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn

from tinycore.errors import UnknownNameError

OF_TENSOR: Final = {
    "from_numpy": "Tensor(array); Tensor.from_dlpack(array) shares its memory",
    "tensor": "Tensor(data)",
    "as_tensor": "Tensor(data); Tensor.from_dlpack(array) shares its memory",
    "type": "x.cast(dtype), x.dtype",
    "type_as": "x.cast(other.dtype)",
    "dim": "x.ndim",
    "is_leaf": "x.requires_grad",
    "grad_fn": "x.uop, the graph behind a tensor",
    "data_ptr": "x.uop.buffer, or __dlpack__ to hand the memory to another library",
    "is_contiguous": "x.contiguous(), which is x itself where nothing is to be done",
    "stride": "x.shape: tensors have no strides, x.contiguous() gives memory row by row",
    "storage": "x.numpy() or x.data()",
    "register_hook": "y.gradient(x), which gives gradients of whatever stands in the middle",
    "retain_grad": "y.gradient(x), which gives gradients of whatever stands in the middle",
    "numpy_": "x.numpy()",
    "astype": "x.cast(dtype)",
    "tobytes": "x.data().tobytes()",
    "copy": "x.clone()",
    "ravel": "x.flatten()",
    "swapaxes": "x.transpose(a, b)",
    "nelement": "x.numel()",
    "addmm": "x + a @ b",
    "mm": "a @ b",
    "mv": "a @ b",
    "inner": "(a * b).sum(-1)",
    "lt": "a < b",
    "le": "a <= b",
    "gt": "a > b",
    "ge": "a >= b",
    "logit": "(x / (1 - x)).log()",
    "masked_scatter": "x[mask] = values",
    "no_grad": "x.detach(); a graph costs nothing until `backward`",
    "half_": "x.half()",
    "share_memory_": "Tensor.from_blob",
    "pin_memory": "nothing: copies are asynchronous where the device can",
    "dropout_": "x.dropout(p)",
    "linalg": "methods, such as a.solve(b), a.inv() and a.eigh(); "
    "tinycore.array_api.linalg has the functions of the standard",
    "pinverse": "x.pinv()",
    "lstsq": "a.pinv() @ b",
    "solve_triangular": "a.solve(b)",
    "triangular_solve": "a.solve(b)",
    "cholesky_solve": "a.solve(b) of the matrix itself",
    "cholesky_inverse": "a.inv() of the matrix itself",
    "lu": "a.solve(b), a.qr()",
    "eig": "a.eigh(), of symmetric matrices",
    "eigvals": "a.eigvalsh(), of symmetric matrices",
    "cond": "x.matrix_norm(2) / x.matrix_norm(-2)",
    "multi_dot": "a @ b @ c",
}
"""Attributes of torch.Tensor and numpy.ndarray."""

DEVICE_METHODS: Final = (
    Path(__file__).with_name("torch_device_methods.txt").read_text("utf-8").split()
)
"""Methods of torch.Tensor, and the like, that move it to a device; code of the core names none."""
ON_DEVICES: Final = "x.to(device) moves it, DEV=device chooses one for the whole program"
"""Message for them."""

OF_NN: Final = {
    "Module": "no base class: any object with tensors in it is a model; "
    "nn.state.get_parameters(model) finds them",
    "Parameter": "Tensor(data, requires_grad=True)",
    "Sequential": "a list of layers and functions, x.sequential(layers)",
    "ModuleList": "a list",
    "ModuleDict": "a dict",
    "Identity": "lambda x: x",
    "Flatten": "x.flatten(1)",
    "functional": "methods of Tensor, such as x.relu() and x.softmax(-1)",
    "init": "methods of Tensor, such as Tensor.kaiming_uniform(...)",
    "utils": "nn.optim.clip_grad_norm_ and nn.state",
    "MaxPool2d": "x.max_pool2d(kernel_size)",
    "AvgPool2d": "x.avg_pool2d(kernel_size)",
    "AdaptiveAvgPool2d": "x.mean((2, 3), keepdim=True) for a size of 1",
    "Upsample": "x.interpolate(size)",
    "CrossEntropyLoss": "scores.cross_entropy(labels)",
    "NLLLoss": "logs.nll_loss(labels)",
    "MSELoss": "(x - y).square().mean()",
    "L1Loss": "(x - y).abs().mean()",
    "BCELoss": "p.binary_crossentropy(truth)",
    "BCEWithLogitsLoss": "scores.binary_crossentropy_logits(truth)",
    "MultiheadAttention": "nn.MultiHeadAttention",
    "LazyLinear": "nn.Linear(in_features, out_features)",
    "DataParallel": "x.shard(devices, axis)",
    **{
        name: f"x.{method}()"
        for name, method in (
            ("ReLU", "relu"),
            ("ReLU6", "relu6"),
            ("LeakyReLU", "leaky_relu"),
            ("ELU", "elu"),
            ("CELU", "celu"),
            ("SELU", "selu"),
            ("GELU", "gelu"),
            ("SiLU", "silu"),
            ("Mish", "mish"),
            ("Sigmoid", "sigmoid"),
            ("LogSigmoid", "logsigmoid"),
            ("Tanh", "tanh"),
            ("Softmax", "softmax"),
            ("LogSoftmax", "log_softmax"),
            ("Softplus", "softplus"),
            ("Softsign", "softsign"),
            ("Hardtanh", "hardtanh"),
            ("Hardswish", "hardswish"),
            ("Hardsigmoid", "hardsigmoid"),
        )
    },
}
"""Attributes of torch.nn."""

OF_PACKAGE: Final = {
    "tensor": "Tensor(data)",
    "as_tensor": "Tensor(data)",
    "from_numpy": "Tensor(array)",
    "no_grad": "x.detach(); a graph costs nothing until `backward`",
    "manual_seed": "Tensor.manual_seed(seed)",
    "compile": "TinyJit(function)",
    "save": "nn.state.safe_save(state, path)",
    "load": "nn.state.safe_load(path)",
    "device": "a string, a line of `tinycore devices`",
    "optim": "nn.optim",
    "autograd": "y.gradient(x)",
    "linalg": OF_TENSOR["linalg"],
}
"""Attributes of torch."""


NO_DEVICES: Final = {
    "disk": "Tensor(path, dtype=..) for the content of a file, nn.state.safe_load(path) and "
    "nn.state.safe_save(state, path) for tensors by name",
    "npy": "Tensor(array), x.numpy()",
    "shm": "Tensor.from_blob(address, shape) on memory that another process shares",
}
"""Storage that tinygrad calls a device."""


class ForeignName:
    """A descriptor that raises UnknownNameError, on tensors and on their class."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        what = "Tensor" if instance is None else "a Tensor"
        raise UnknownNameError(f"{what} has no {self.text}")


def unknown_name(
    owner: str, name: str, ours: dict[str, str], known: Iterable[str], hint: str = ""
) -> Exception:
    """The error for a name that an owner has not; `hint` is told where none is spelled like it."""
    text = f"{owner} has no {name!r}"
    if name in ours:
        return UnknownNameError(f"{text}; here it is {ours[name]}")
    near = difflib.get_close_matches(name, [n for n in known if not n.startswith("_")], 3, 0.7)
    hint = f"did you mean {' or '.join(near)}?" if near else hint
    return UnknownNameError(f"{text}; {hint}" if hint else text)
