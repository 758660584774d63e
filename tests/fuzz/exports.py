"""Random tensor programs, exported to ONNX and run by onnxruntime and by OnnxRunner.

Expected is what torch computes, as for the programs run here. A program that sorts is refused by
name; none reads numbers of its inputs, which is refused, too.
"""

from __future__ import annotations

import sys
import traceback
from functools import cache, partial
from typing import Any

import numpy
import onnx
import onnxruntime

from tests.fuzz.programs import Program, random_program, script, smaller
from tests.fuzz.programs.compare import Array, Expected, Found, check
from tests.fuzz.programs.effects import FAMILY, read
from tests.fuzz.programs.form import Value, ours_of
from tests.fuzz.programs.mirror import as_arrays, compiled
from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run
from tiny_onnx import OnnxRunner, export
from tinycore import Tensor, TinyJit, dtypes
from tinycore.errors import ArgumentError, GradientError, UnsupportedError

UNSUPPORTED = (UnsupportedError, GradientError)


TRACED = tuple([kind for kind in FAMILY if kind[0] is not read])
"""Steps that no number of an input decides."""


class Refused(Exception):
    """A program that cannot be exported, and says so."""


def exported(program: Program, data: dict[str, Array]) -> onnx.ModelProto:
    """The model of a program, whose inputs and outputs have the names of the program."""
    names = [i.name for i in program.inputs]

    def function(*tensors: Tensor) -> list[Tensor]:
        scope: dict[str, Any] = {"Tensor": Tensor, "TinyJit": TinyJit, "dtypes": dtypes}
        scope |= dict(zip(names, tensors, strict=True))
        exec(compiled("\n".join(ours_of(program.steps))), scope)
        found = [scope[value.name] for value in program.compared]
        return [x.float() if x.dtype is dtypes.bfloat16 else x for x in found]

    examples = [Tensor(data[i.name], dtype=i.dtype) for i in program.inputs]
    try:
        return export(
            function,
            examples,
            input_names=names,
            output_names=[f"result {value.name}" for value in program.compared],
        )
    except UNSUPPORTED as error:
        raise Refused(str(error)) from error
    except ArgumentError as error:
        if "asked for a number" in str(error):
            raise Refused(str(error)) from error
        raise


def program(seed: int) -> Program:
    """The program of a seed."""
    return random_program(seed, TRACED)


def tensors_of(program: Program, data: dict[str, Array]) -> dict[str, Tensor]:
    """The inputs of a program."""
    return {i.name: Tensor(data[i.name], dtype=i.dtype) for i in program.inputs}


def by_runner(model: onnx.ModelProto, program: Program, data: dict[str, Array]) -> Found:
    """The compared values, computed by OnnxRunner from the exported model."""
    results = OnnxRunner(model)(tensors_of(program, data))
    found = [results[f"result {value.name}"] for value in program.compared]
    return {
        v.name: (t.numpy(), dtype_of(t, v))
        for v, t in zip(program.compared, found, strict=True)
        if isinstance(t, Tensor)
    }


def dtype_of(result: Tensor, value: Value) -> Any:
    """The dtype of a result; bfloat16, which NumPy lacks, is exported as float32."""
    is_wider = value.dtype is dtypes.bfloat16 and result.dtype is dtypes.float32
    return value.dtype if is_wider else result.dtype


def by_runtime(model: onnx.ModelProto, program: Program, data: dict[str, Array]) -> Found:
    """The compared values, computed by onnxruntime."""
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    given = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(*bits_of(tensor))
        for name, tensor in tensors_of(program, data).items()
    }
    wanted = [output.name for output in session.get_outputs()]
    by_name = dict(zip(wanted, session.run_with_ort_values(wanted, given), strict=True))
    return {v.name: (by_name[f"result {v.name}"].numpy(), v.dtype) for v in program.compared}


@cache
def session_options() -> Any:
    """Settings of a session without threads and optimizations, which take longer than models do."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def bits_of(tensor: Tensor) -> tuple[Array, int]:
    """The content of a tensor as onnxruntime takes it, and the number of its element type."""
    from tiny_onnx.export.save import host_array  # noqa: PLC0415
    from tiny_onnx.export.writer import number_of  # noqa: PLC0415

    array = host_array(tensor)
    plain = array.view(numpy.uint16) if tensor.dtype is dtypes.bfloat16 else array
    return plain, number_of(tensor.dtype)


def verdict(program: Program) -> Verdict:
    """The first difference, by either runtime; "runtime" where that of onnxruntime alone differs,
    which the evaluator of ONNX itself does not share.
    """
    try:
        model = exported(program, as_arrays(program))
    except Refused as error:
        return Verdict("refused", str(error))
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-6))
    expected = Expected(program)
    others = Verdict("")
    for compute in (by_runtime, by_runner):
        found = check(program, partial(compute, model), expected)
        if not found.kind:
            continue
        if compute is by_runtime and is_right_by_reference(model, program, expected):
            others = Verdict("runtime", found.message)
            continue
        return found._replace(message=f"{compute.__name__}: {found.message}")
    return others


def is_right_by_reference(model: onnx.ModelProto, program: Program, expected: Expected) -> bool:
    """True if the evaluator of ONNX itself finds what is expected. onnxruntime computes float16 in
    float32 and leaves out casts between the two, so a value may differ from the same one rounded.
    """
    return not check(program, partial(by_reference, model), expected).kind


def by_reference(model: onnx.ModelProto, program: Program, data: dict[str, Array]) -> Found:
    """The compared values, computed by the evaluator of ONNX."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415  takes a second, seldom needed

    from tiny_onnx.export.writer import number_of  # noqa: PLC0415

    types = [onnx.helper.tensor_dtype_to_np_dtype(number_of(i.dtype)) for i in program.inputs]
    given = {i.name: data[i.name].astype(t) for i, t in zip(program.inputs, types, strict=True)}
    names = [f"result {value.name}" for value in program.compared]
    results = ReferenceEvaluator(model).run(names, given)
    return {v.name: (r, v.dtype) for v, r in zip(program.compared, results, strict=True)}


FUZZER = Fuzzer(
    "tests.fuzz.exports",
    __doc__,
    program,
    verdict,
    script,
    smaller,
    accepted=frozenset({"refused", "runtime"}),
    devices=FRONTEND,
)

if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(4)
    sys.exit(run(FUZZER))
