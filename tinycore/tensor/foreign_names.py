"""Names of other libraries that tinycore does not have, each with the equivalent to use instead.

Floor 5. Asking for one of them, on `Tensor`, `tinycore` or `tinycore.nn`, raises UnknownNameError
with the equivalent; any other unknown name is answered with names of similar spelling: by
`unknown_name` for modules, and by Python for tensors. See
docs/decisions/0056-no-getattr-on-tensors.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final, NoReturn

from tinycore.errors import UnknownNameError

SPECTRA: Final = "two products, for the real and the imaginary part, as in docs/data.md"

OF_TENSOR: Final = {
    "from_numpy": "Tensor(array); Tensor.from_dlpack(array) shares its memory",
    "tensor": "Tensor(data)",
    "as_tensor": "Tensor(data); Tensor.from_dlpack(array) shares its memory",
    "type": "x.cast(dtype), x.dtype",
    "type_as": "x.cast(other.dtype)",
    "dim": "x.ndim",
    "is_leaf": "x.requires_grad",
    "grad_fn": "x.uop, the graph behind a tensor",
    "data_ptr": "x.__dlpack__(), which hands the memory to another library, or x.data()",
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
    "values": "the tensor itself: x.max(axis) gives the greatest alone; x.sort() and x.topk(k) "
    "give two tensors, values, indices = x.sort()",
    "indices": "x.argmax(axis); x.sort() and x.topk(k) give two tensors",
    "scatter_add": 'x.scatter_reduce(axis, index, source, "sum")',
    "scatter_add_": 'x.assign(x.scatter_reduce(axis, index, source, "sum"))',
    "scatter_": "x.assign(x.scatter(axis, index, source))",
    "index_add_": "x.assign(x.index_add(axis, index, source))",
    "index_put": "y = x.clone(); y[indices] = values",
    "index_put_": "x[indices] = values",
    "index_copy": "y = x.clone(); y[index] = source",
    "index_copy_": "x[index] = source",
    "index_fill": "y = x.clone(); y[index] = value",
    "index_fill_": "x[index] = value",
    "put": "x.flatten()[index] = values",
    "put_": "x.flatten()[index] = values",
    "take": "x.flatten()[index]; of an axis, x.index_select(axis, index)",
    "take_along_dim": "x.gather(axis, index)",
    "select": "x[:, index]",
    "at": "x[index] = value, x[index] += value",
    "fill": "x.fill_(value)",
    "fill_diagonal_": "x.diagonal().fill_(value)",
    "expand_as": "x.expand(other.shape)",
    "view_as": "x.view(other.shape)",
    "reshape_as": "x.reshape(other.shape)",
    "broadcast_to": "x.expand(shape)",
    "resize": "x.reshape(shape), x.pad(amounts), x.shrink(bounds)",
    "resize_": "x.reshape(shape), x.pad(amounts), x.shrink(bounds)",
    "as_strided": "x.unfold(axis, size, step), x.reshape(shape), slices",
    "new_tensor": "Tensor(data, dtype=x.dtype, device=x.device)",
    "new_zeros": "Tensor.zeros(shape, dtype=x.dtype, device=x.device)",
    "new_ones": "Tensor.ones(shape, dtype=x.dtype, device=x.device)",
    "new_empty": "Tensor.empty(shape, dtype=x.dtype, device=x.device)",
    "new_full": "Tensor.full(shape, value, dtype=x.dtype, device=x.device)",
    "t": "x.T",
    "t_": "x = x.T",
    "H": "x.T: there are no complex numbers",
    "mH": "x.mT: there are no complex numbers",
    "transpose_": "x = x.transpose(a, b)",
    "squeeze_": "x = x.squeeze(axis)",
    "unsqueeze_": "x = x.unsqueeze(axis)",
    "swapdims": "x.transpose(a, b)",
    "moveaxis": "x.movedim(source, destination)",
    "fliplr": "x.flip(1)",
    "flipud": "x.flip(0)",
    "rot90": "x.transpose(0, 1).flip(0)",
    "detach_": "x = x.detach()",
    "apply_": "operations on all of x",
    "absolute": "x.abs()",
    "negative": "-x",
    "positive": "x",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "true_divide": "a / b",
    "floor_divide": "a // b",
    "remainder": "a % b",
    "float_power": "a.double() ** b",
    "bitwise_left_shift": "a << b",
    "bitwise_right_shift": "a >> b",
    "logical_and": "a & b of bool tensors",
    "logical_or": "a | b of bool tensors",
    "logical_xor": "a ^ b of bool tensors",
    "equal": "(a == b).all(), where the shapes are equal",
    "greater": "a > b",
    "greater_equal": "a >= b",
    "less": "a < b",
    "less_equal": "a <= b",
    "not_equal": "a != b",
    "fmax": "a.isnan().where(b, a.maximum(b))",
    "fmin": "a.isnan().where(b, a.minimum(b))",
    "clamp_min": "x.clamp(min_=low)",
    "clamp_max": "x.clamp(max_=high)",
    "clip_": "x.clamp_(low, high)",
    "clamp_min_": "x.clamp_(low)",
    "clamp_max_": "x.clamp_(max_=high)",
    "fix": "x.trunc()",
    "frac": "x - x.trunc()",
    "deg2rad": "x * (math.pi / 180)",
    "rad2deg": "x * (180 / math.pi)",
    "addcmul": "x + value * a * b",
    "addcmul_": "x += value * a * b",
    "addcdiv": "x + value * a / b",
    "addcdiv_": "x += value * a / b",
    "addmm_": "x += a @ b",
    "addmv": "x + a @ b",
    "addbmm": "x + (a @ b).sum(0)",
    "baddbmm": "x + a @ b",
    "ger": "a.outer(b)",
    "vdot": "(a * b).sum()",
    "dist": "(a - b).norm()",
    "pairwise_distance": "(a - b).norm(dim=-1)",
    "cosine_similarity": "(a.normalize(dim=-1) * b.normalize(dim=-1)).sum(-1)",
    "smooth_l1_loss": "x.huber_loss(y)",
    "cov": "y @ y.T / (x.shape[1] - 1); y = x - x.mean(1, keepdim=True)",
    "tensor_split": "x.split(sizes), x.chunk(count)",
    "xlogy": "(x == 0).where(0, x * y.log())",
    "inference_mode": "x.detach(); a graph costs nothing until `backward`",
    "logspace": "base ** Tensor.linspace(start, stop, steps)",
    "aminmax": "x.min(axis), x.max(axis)",
    "nansum": "x.isnan().where(0, x).sum(axis)",
    "nanmean": "x.isnan().where(0, x).sum(axis) / x.isnan().logical_not().sum(axis)",
    "nan_to_num": "x.isnan().where(0, x)",
    "nan_to_num_": "x.assign(x.isnan().where(0, x))",
    "count_nonzero": "(x != 0).sum(axis)",
    "histc": "numpy.histogram(x.numpy(), bins, (low, high))[0]",
    "grid_sample": "x.flatten(2).gather(2, places) at the four neighbors of each place, weighed, "
    "as in docs/data.md",
    **dict.fromkeys("fft ifft rfft irfft fft2 stft istft".split(), SPECTRA),
    "vmap": "operations on all rows at once: they broadcast",
    "ctc_loss": "a loop over time: a.logaddexp(b) of the states that lead to each label",
    "kthvalue": "x.sort(axis)[0][:, k - 1]",
    "msort": "x.sort(0)[0]",
    "argwhere": "x.nonzero()",
    "unique_consecutive": "x.unique(), which sorts",
    "bernoulli": "(x.rand_like() < x).cast(x.dtype)",
    "bernoulli_": "x.assign((x.rand_like() < p).cast(x.dtype))",
    "random_": "x.assign(Tensor.randint(x.shape, low=low, high=high))",
    "prelu": "(x > 0).where(x, weight * x)",
    "byte": 'x.cast("uint8")',
    "char": 'x.cast("int8")',
    "itemsize": "x.dtype.itemsize",
    "strides": "x.shape: tensors have no strides, x.contiguous() gives memory row by row",
    "is_cpu": "x.device",
    "get_device": "x.device",
    "is_nonzero": "bool(x)",
    "is_complex": "False: there are no complex numbers",
    "conj": "x: there are no complex numbers",
    "real": "x: there are no complex numbers",
    "imag": "0: there are no complex numbers",
    "tofile": "x.numpy().tofile(path), nn.state.safe_save(state, path)",
    "block_until_ready": "x.realize(), and Device[x.device].synchronize()",
    "untyped_storage": "x.numpy() or x.data()",
    **{
        f"{name}_": f"x.assign(x.{name}())"
        for name in (
            "acos acosh asin asinh atan atanh cos cosh sin sinh tan erf exp2 expm1 log2 log10 "
            "log1p sign square tril triu"
        ).split()
    },
}
"""Attributes of torch.Tensor, numpy.ndarray and jax.Array."""

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
    **dict.fromkeys(
        ("DataLoader", "Dataset", "transforms", "metrics"), "a few lines, as in docs/data.md"
    ),
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
    "BatchNorm1d": "nn.BatchNorm",
    "InstanceNorm1d": "nn.InstanceNorm",
    "InstanceNorm2d": "nn.InstanceNorm",
    "EmbeddingBag": "nn.Embedding(count, size)(x).sum(axis)",
    "Dropout1d": "nn.Dropout",
    "Dropout2d": "nn.Dropout",
    "LazyLinear": "nn.Linear(in_features, out_features)",
    "Dense": "nn.Linear(in_features, out_features)",
    "Conv": "nn.Conv2d(in_channels, out_channels, kernel_size)",
    "Conv3d": "nn.Conv2d with a kernel_size of three numbers",
    "MaxPool1d": "x.max_pool2d((size,))",
    "MaxPool3d": "x.max_pool2d((size, size, size))",
    "AvgPool1d": "x.avg_pool2d((size,))",
    "AvgPool3d": "x.avg_pool2d((size, size, size))",
    "AdaptiveAvgPool1d": "x.mean(2, keepdim=True) for a size of 1",
    "ZeroPad2d": "x.pad(amounts)",
    "ConstantPad2d": "x.pad(amounts, value=value)",
    "ReflectionPad2d": 'x.pad(amounts, mode="reflect")',
    "ReplicationPad2d": 'x.pad(amounts, mode="replicate")',
    "CircularPad2d": 'x.pad(amounts, mode="circular")',
    "PixelShuffle": "x.pixel_shuffle(factor)",
    "Unflatten": "x.unflatten(axis, sizes)",
    "Unfold": "x.unfold(axis, size, step)",
    "GLU": "x.glu(axis)",
    "PReLU": "(x > 0).where(x, weight * x)",
    "Softmin": "(-x).softmax(axis)",
    "Threshold": "(x > threshold).where(x, value)",
    "Tanhshrink": "x - x.tanh()",
    "HuberLoss": "x.huber_loss(y)",
    "SmoothL1Loss": "x.huber_loss(y)",
    "KLDivLoss": "x.kl_div(y)",
    "CosineSimilarity": "(x * y).sum(axis) / (x.norm(axis) * y.norm(axis))",
    "PairwiseDistance": "(x - y).norm(axis)",
    "ParameterList": "a list",
    "ParameterDict": "a dict",
    "Buffer": "Tensor(data), an attribute of the model",
    "UpsamplingNearest2d": 'x.interpolate(size, mode="nearest")',
    "UpsamplingBilinear2d": "x.interpolate(size, align_corners=True)",
    "Transformer": "nn.MultiHeadAttention, nn.LayerNorm and nn.Linear",
    "TransformerEncoderLayer": "nn.MultiHeadAttention, nn.LayerNorm and nn.Linear",
    "TransformerDecoderLayer": "nn.MultiHeadAttention, nn.LayerNorm and nn.Linear",
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

OF_LAYER: Final = {
    "parameters": "nn.state.get_parameters(layer)",
    "named_parameters": "nn.state.get_state_dict(layer).items()",
    "buffers": "nn.state.get_parameters(layer), those whose `is_param` is False",
    "state_dict": "nn.state.get_state_dict(layer)",
    "load_state_dict": "nn.state.load_state_dict(layer, state)",
    "children": "vars(layer).values()",
    "modules": "vars(layer).values()",
    "named_modules": "vars(layer).items()",
    "train": "`with Tensor.train():`, one switch for all layers",
    "eval": "Tensor.training = False, one switch for all layers",
    "forward": "layer(x)",
    "apply": "a loop over nn.state.get_parameters(layer)",
    "requires_grad_": "requires_grad_() of each of nn.state.get_parameters(layer)",
    "zero_grad": "optimizer.zero_grad()",
    "register_buffer": "an attribute, layer.name = tensor.is_param_(False)",
    "register_parameter": "an attribute, layer.name = tensor",
    "register_forward_hook": "a function around layer(x)",
    "to": "x.to_(device) of each of nn.state.get_parameters(layer); DEV=device chooses one for the "
    "whole program",
    **{
        name: f"x.replace(x.{name}()) of each of nn.state.get_parameters(layer)"
        for name in ("half", "bfloat16", "float", "double")
    },
}
"""Attributes of torch.nn.Module."""

OF_SCHEDULERS: Final = {
    "ChainedScheduler": "SequentialLR, or a step of each scheduler",
    **dict.fromkeys(
        "CosineAnnealingWarmRestarts ConstantLR CyclicLR MultiplicativeLR PolynomialLR".split(),
        "LambdaLR(optimizer, factor), whose factor is a function of the count of steps",
    ),
}
"""Attributes of torch.optim.lr_scheduler."""

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
    "array": "Tensor(data)",
    "asarray": "Tensor(data)",
    "jit": "TinyJit(function)",
    "grad": "y.gradient(x)",
    "value_and_grad": "y.gradient(x), beside y",
    "vmap": "operations on all rows at once: they broadcast",
    "numpy": "methods of Tensor, and tinycore.array_api",
    "fft": SPECTRA,
    "stft": SPECTRA,
    "utils": "a loop over arrays, torch.utils.data.DataLoader, as in docs/data.md",
    "metrics": "a line of methods, as in docs/data.md",
    "enable_grad": "nothing: a graph costs nothing until `backward`",
    "inference_mode": "nothing: a graph costs nothing until `backward`",
    "set_grad_enabled": "nothing: a graph costs nothing until `backward`",
    "is_grad_enabled": "nothing: a graph costs nothing until `backward`",
    "is_tensor": "isinstance(x, Tensor)",
    "seed": "Tensor.manual_seed(seed)",
    "random": "Tensor.rand, Tensor.randn, ...; Tensor.manual_seed(seed)",
    "concat": "Tensor.cat(tensors)",
    "concatenate": "Tensor.cat(tensors)",
    "hstack": "Tensor.cat(tensors, dim=1)",
    "vstack": "Tensor.cat(tensors, dim=0)",
    "result_type": "(a + b).dtype",
    "promote_types": "(a + b).dtype",
    "finfo": "dtypes.min(dtype), dtypes.max(dtype), dtypes.finfo(dtype)",
    "iinfo": "dtypes.min(dtype), dtypes.max(dtype)",
    "set_default_dtype": "the setting DEFAULT_FLOAT, as in Context(DEFAULT_FLOAT='FLOAT16')",
    "get_default_dtype": "dtypes.default_float",
    "set_default_device": "the setting DEV",
    "get_default_device": "Device.DEFAULT",
    "autocast": "nn.optim.compute_in and x.half()",
    "amp": "nn.optim.GradScaler, nn.optim.compute_in",
    "Module": OF_NN["Module"],
    "einsum": "Tensor.einsum(formula, *tensors)",
}
"""Attributes of torch, numpy and jax; methods of tensors and names of dtypes are known without."""

OF_OPTIM: Final = {
    "RMSprop": "Adam(params, b1=0.0), which also corrects the bias of its mean",
    "Adagrad": "Adam or AdamW",
    "Adadelta": "Adam or AdamW",
    "Adamax": "Adam or AdamW",
    "NAdam": "Adam or AdamW",
    "RAdam": "Adam or AdamW",
    "LBFGS": "SGD, Adam or Muon",
    "Rprop": "SGD or Adam",
    "sgd": "SGD(params, lr)",
    "adam": "Adam(params, lr)",
}
"""Attributes of torch.optim and optax."""


def of_package(name: str, functions: object, types: object) -> dict[str, str]:
    """OF_PACKAGE with a name that tensors or dtypes have, or that is known of them."""
    if name in OF_PACKAGE:
        return OF_PACKAGE
    if name in DEVICE_METHODS:
        return {name: "x.to(device); DEV=device chooses one for the whole program"}
    if name in OF_TENSOR:
        return OF_TENSOR
    if hasattr(functions, name):
        return {name: f"Tensor.{name}"}
    return {name: f"dtypes.{name}"} if hasattr(types, name) else {}


NO_DEVICES: Final = {
    "disk": "Tensor(path, dtype=..) for the content of a file, nn.state.safe_load(path) and "
    "nn.state.safe_save(state, path) for tensors by name",
    "npy": "Tensor(array), x.numpy()",
    "shm": "Tensor.from_blob(address, shape) on memory that another process shares",
}
"""Storage that tinygrad calls a device."""


class ForeignName:
    """A descriptor that raises UnknownNameError, on instances of a class and on the class."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        name = "Tensor" if owner is None else owner.__name__
        article = "an " if name.startswith(tuple("AEIOU")) else "a "
        raise UnknownNameError(f"{name if instance is None else article + name} has no {self.text}")


def public(names: Iterable[str], hidden: Container[str]) -> list[str]:
    """Names for completion: neither hidden nor private."""
    return [n for n in names if n not in hidden and (n[0] != "_" or n[:2] == "__")]


def unknown_name(owner: str, name: str, ours: dict[str, str], known: Iterable[str]) -> Exception:
    """The error for an unknown name, with the names that are spelled like it."""
    text = f"{owner} has no {name!r}"
    if name in ours:
        return UnknownNameError(f"{text}; here it is {ours[name]}")
    near = difflib.get_close_matches(name, [n for n in known if not n.startswith("_")], 3, 0.7)
    return UnknownNameError(f"{text}; did you mean {' or '.join(near)}?" if near else text)
