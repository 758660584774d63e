"""`Tensor`: the public class.

Floor 5. The subjects are in the files it inherits from, see `core`; here are the names that would
shadow Python's own in the others, and the training mode.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from operator import attrgetter
from types import ModuleType
from typing import Final, Self

from tinycore._deferred import module_named
from tinycore._locks import lock
from tinycore._setting import process
from tinycore._tracebacks import shown_at_caller
from tinycore.config import Context, Function, decorated, settings
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor.interop.foreign_names import DEVICE_METHODS, OF_TENSOR, ForeignName, public
from tinycore.tensor.methods.multi import Multi
from tinycore.tensor.methods.templates import templates
from tinycore.uop.shape import DeviceLike

OLDER_NAMES: Final = {"lazydata": "uop"}
"""Names of attributes in older versions of tinygrad."""
HIDDEN: Final = {*OF_TENSOR, *DEVICE_METHODS, *OLDER_NAMES}
"""Attributes of Tensor that `dir` does not list."""


class TensorType(type):
    """Gives the class itself a `training` property."""

    @property
    def training(cls) -> bool:
        """True if layers work as in training; the setting TRAINING."""
        return settings.TRAINING

    @training.setter
    def training(cls, value: bool) -> None:
        settings.TRAINING = value

    @shown_at_caller
    def __setattr__(cls, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name != "training":  # templates were traced through the former methods
            templates.clear()

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)
        templates.clear()

    def __dir__(cls) -> list[str]:
        return public(super().__dir__(), HIDDEN)


class Modes:
    """Modes of the blocks that are open in any thread. `modes` is the one instance.

    A thread without a block of its own has the mode of the last one: a layer in a pool of threads
    works as the program around the pool says.
    """

    def __init__(self) -> None:
        self.open: list[Mode] = []
        self.outside = False
        """The mode outside of all blocks."""
        self.lock = lock()

    def enter(self, mode: Mode) -> None:
        """Note that a block begins."""
        with self.lock:
            if not self.open:
                self.outside = process["TRAINING"]
            self.open.append(mode)
            process["TRAINING"] = mode.training

    def leave(self, mode: Mode) -> None:
        """Note that a block ends, perhaps before others that began later."""
        with self.lock:
            self.open.remove(mode)
            process["TRAINING"] = self.open[-1].training if self.open else self.outside


modes: Final = Modes()


class Mode(ContextDecorator):
    """Training on or off for a `with` block or a decorated function."""

    def __init__(self, training: bool) -> None:
        self.training = training
        self.context = Context(TRAINING=training)

    def __enter__(self) -> None:
        self.context.__enter__()
        modes.enter(self)

    def __exit__(self, *exception: object) -> None:
        modes.leave(self)
        self.context.__exit__(*exception)

    def __call__(self, func: Function) -> Function:
        """The function in this mode. Raises SettingError for a generator."""
        return decorated(self, func, super().__call__)


class Tensor(Multi, metaclass=TensorType):
    """An array of numbers that is computed when it is needed.

    Operations build a graph and check shapes, dtypes and devices at once; `realize`, `numpy`,
    `item` and `tolist` compute it. `backward` and `gradient` differentiate.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> total = (x @ x + 1).sum()
    >>> total.item(), total.gradient(x)[0].tolist()
    (58.0, [[7.0, 11.0], [9.0, 13.0]])
    """

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), HIDDEN)

    @staticmethod
    def train(mode: bool = True) -> Mode:
        """Training on (or off) for a `with` block or a decorated function; also in other threads,
        unless they are in such a block or a `Context` with TRAINING of their own.

        >>> with Tensor.train():
        ...     Tensor.training
        True
        >>> Tensor.training
        False
        """
        return Mode(mode)

    @staticmethod
    def test(mode: bool = True) -> Mode:
        """Training off (or on) for a `with` block or a decorated function.

        >>> with Tensor.train(), Tensor.test():
        ...     Tensor.training
        False
        """
        return Mode(not mode)

    # --- what the Python array API standard asks of an array

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        namespace: ModuleType = module_named("tinycore.array_api")
        if api_version not in (None, namespace.__array_api_version__):
            raise ArgumentError(
                f"__array_namespace__: version {api_version!r} of the standard is not here, only "
                f"{namespace.__array_api_version__}"
            )
        return namespace

    def __pos__(self) -> Self:
        return self

    @property
    def mT(self) -> Self:  # noqa: N802  the standard's name
        """The last two axes exchanged. Raises ShapeError below two axes.

        >>> Tensor.zeros(2, 3, 4).mT.shape
        (2, 4, 3)
        """
        if self.ndim < 2:
            raise ShapeError(f"mT: needs two axes, got shape {self.shape}")
        return self.transpose(-1, -2)

    def to_device(self, device: DeviceLike, /, *, stream: None = None) -> Self:
        """The tensor on a device; itself when it is there already. There are no streams to name.

        Raises ArgumentError for a stream.

        >>> x = Tensor([1, 2])
        >>> x.to_device(x.device) is x
        True
        """
        if stream is not None:
            raise ArgumentError(f"to_device: there are no streams, got {stream!r}")
        return self.to(device)

    # --- casts, named as in torch

    def half(self) -> Self:
        """As float16.

        >>> Tensor([1 / 3]).half().item() == 0.333251953125
        True
        """
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """As bfloat16.

        >>> Tensor([1 / 3]).bfloat16().item() == 0.333984375
        True
        """
        return self.cast(dtypes.bfloat16)

    def double(self) -> Self:
        """As float64.

        >>> Tensor([1, 2]).double().dtype
        dtypes.float64
        """
        return self.cast(dtypes.float64)

    def short(self) -> Self:
        """As int16.

        >>> Tensor([1.9, -1.9]).short().tolist()
        [1, -1]
        """
        return self.cast(dtypes.int16)

    def long(self) -> Self:
        """As int64.

        >>> Tensor([1.9, -1.9]).long().tolist()
        [1, -1]
        """
        return self.cast(dtypes.int64)

    def float(self) -> Self:
        """As float32.

        >>> Tensor([1, 2]).float().tolist()
        [1.0, 2.0]
        """
        return self.cast(dtypes.float32)

    def int(self) -> Self:
        """As int32.

        >>> Tensor([1.9, -1.9]).int().tolist()
        [1, -1]
        """
        return self.cast(dtypes.int32)

    def bool(self) -> Self:
        """As bool: whether an element is nonzero; NaN is.

        >>> Tensor([0.0, 0.5]).bool().tolist()
        [False, True]
        """
        return self.cast(dtypes.bool)


for foreign, equivalent in OF_TENSOR.items():
    setattr(Tensor, foreign, ForeignName(f"{foreign!r}; here it is {equivalent}"))
for foreign, equivalent in DEVICE_METHODS.items():
    setattr(Tensor, foreign, ForeignName(f"{foreign!r}; {equivalent}"))
for older, name in OLDER_NAMES.items():
    setattr(Tensor, older, property(attrgetter(name)))
