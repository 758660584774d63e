"""The processor that code is made for: "native", or words such as "x86_64,znver2,avx2,-avx512f".

The first word is the machine, the second a processor as LLVM names it, the others features to add
or, with a minus, to leave out. Nothing, or "native", is the processor we run on. Both compilers
get the same answer, and plans get from it the limits they depend on.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tinycore.config import cpu_count
from tinycore.errors import SettingError
from tinycore.render import Limits

__all__ = ["MACHINES", "NATIVE", "Arch", "host_machine"]

_SPELLINGS: Final = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}
MACHINES: Final = tuple(dict.fromkeys(_SPELLINGS.values()))

NATIVE: Final = "native"

# x86 processors as LLVM spells them, by the widest vectors they have
_SSE: Final = """x86-64 x86-64-v2 nocona core2 penryn bonnell atom silvermont slm goldmont
    goldmont-plus tremont nehalem corei7 westmere k8 k8-sse3 athlon64 athlon64-sse3 athlon-fx
    opteron opteron-sse3 amdfam10 barcelona btver1""".split()
_AVX: Final = "sandybridge corei7-avx ivybridge core-avx-i bdver1 btver2".split()
_AVX_FMA: Final = "bdver2 bdver3".split()
_AVX2: Final = """x86-64-v3 haswell core-avx2 broadwell skylake alderlake raptorlake meteorlake
    gracemont arrowlake arrowlake-s lunarlake pantherlake wildcatlake sierraforest
    grandridge clearwaterforest bdver4 znver1 znver2 znver3""".split()
_AVX512: Final = """x86-64-v4 skylake-avx512 skx cascadelake cooperlake cannonlake icelake-client
    icelake-server rocketlake tigerlake sapphirerapids emeraldrapids graniterapids graniterapids-d
    novalake diamondrapids knl knm znver4 znver5""".split()

_IMPLIED: Final[Mapping[str, frozenset[str]]] = (
    dict.fromkeys(_SSE, frozenset[str]())
    | dict.fromkeys(_AVX, frozenset({"avx"}))
    | dict.fromkeys(_AVX_FMA, frozenset({"avx", "fma"}))
    | dict.fromkeys(_AVX2, frozenset({"avx", "f16c", "fma", "avx2"}))
    | dict.fromkeys(_AVX512, frozenset({"avx", "f16c", "fma", "avx2", "avx512f", "avx512bw"}))
    | dict.fromkeys(("knl", "knm"), frozenset({"avx", "f16c", "fma", "avx2", "avx512f"}))
)
"""The features of each x86 processor that plans depend on."""

_NEEDS: Final = {
    "avx512bw": ("avx512f", "avx2", "fma", "f16c", "avx"),
    "avx512f": ("avx2", "fma", "f16c", "avx"),
    "avx2": ("avx",),
    "f16c": ("avx",),
    "fma": ("avx",),
}
"""Features that a feature brings along, and that take it away when they go."""

_X86_FEATURES: Final = frozenset(
    """64bit adx aes amx-avx512 amx-bf16 amx-complex amx-fp16 amx-fp8 amx-int8 amx-movrs amx-tf32
    amx-tile avx avx10.1 avx10.1-512 avx10.2 avx10.2-512 avx2 avx512bf16 avx512bitalg avx512bw
    avx512cd avx512dq avx512f avx512fp16 avx512ifma avx512vbmi avx512vbmi2 avx512vl avx512vnni
    avx512vp2intersect avx512vpopcntdq avxifma avxneconvert avxvnni avxvnniint16 avxvnniint8 bmi
    bmi2 cldemote clflushopt clwb clzero cmov cmpccxadd cx16 cx8 enqcmd f16c fast-bfloat16 fma
    fma4 fsgsbase fxsr gfni invpcid kl lwp lzcnt mmx movbe movdir64b movdiri movrs mwaitx pclmul
    pconfig pku popcnt prefer-128-bit
    prefer-256-bit prefetchi prfchw ptwrite raoint rdpid rdpru rdrnd rdseed rtm sahf
    serialize sha sha512 shstk sm3 sm4 sse sse2 sse3 sse4.1 sse4.2 sse4a ssse3 tbm tsxldtrk uintr
    usermsr vaes vpclmulqdq waitpkg wbnoinvd widekl xop xsave xsavec xsaveopt xsaves""".split()
)

_WORD: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
_FORM: Final = (
    'write "native", or MACHINE[,PROCESSOR[,FEATURE or -FEATURE ...]] '
    "such as x86_64,znver2,avx2,-avx512f"
)


@dataclass(frozen=True)
class Arch:
    """A processor to make code for. `features` are LLVM's names, each with its sign."""

    machine: str
    processor: str = NATIVE
    features: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Arch:
        """The processor that `text` names. Raises SettingError, naming the word that is wrong."""
        words = [word.strip() for word in text.strip().split(",")]
        if words == [""]:
            words = [NATIVE]
        if words[0] == NATIVE:
            return cls(host_machine(), NATIVE, tuple(_features(text, host_machine(), words[1:])))
        machine = _SPELLINGS.get(words[0].lower())
        if machine is None:
            known = ", ".join(MACHINES)
            raise _malformed(text, f"no machine is named {words[0]!r}; known are {known}")
        processor = words[1] if len(words) > 1 else _baseline(machine)
        if processor != NATIVE:
            _check_processor(text, machine, processor)
        elif machine != host_machine():
            raise _malformed(
                text, f"this machine is {host_machine()}, so {machine} cannot be native"
            )
        return cls(machine, processor, tuple(_features(text, machine, words[2:])))

    def __str__(self) -> str:
        signed = (feature.removeprefix("+") for feature in self.features)
        return ",".join((self.machine, self.processor, *signed))

    @property
    def identity(self) -> str:
        """A text that differs wherever machine code may: what "native" stands for is in it."""
        if self.processor != NATIVE:
            return str(self)
        facts = " ".join((_host_model(), *sorted(_host_features())))
        return f"{self} {blake2b(facts.encode(), digest_size=8).hexdigest()}"

    @cached_property
    def known_features(self) -> frozenset[str]:
        """Features of _IMPLIED that this processor has; none where it is no x86."""
        if self.machine != "x86_64":
            return frozenset()
        found = set(_host_features() if self.processor == NATIVE else _IMPLIED[self.processor])
        for signed in self.features:
            name = signed[1:]
            if signed[0] == "+":
                found |= {name, *_NEEDS.get(name, ())}
            else:
                found -= {name, *(other for other, needs in _NEEDS.items() if name in needs)}
        return frozenset(found)

    @property
    def is_baseline(self) -> bool:
        """Baseline x86-64: no instructions that convert half floats (F16C) or round."""
        return self.machine == "x86_64" and "f16c" not in self.known_features

    def limits(self) -> Limits:
        """The limits of this processor, by which plans are made."""
        vector_bytes, registers, pair_bytes, last = 16, 32, 0, 0  # NEON
        if self.machine == "x86_64":
            known = self.known_features
            wide = "avx512f" in known
            vector_bytes = 64 if wide else 32 if "avx" in known else 16
            registers = 32 if wide else 16
            last = min(_cache_bytes(3, 32 << 20), _OWN_BYTES * cpu_count())
            pair_bytes = 64 if "avx512bw" in known else 32 if "avx2" in known else 16
        return Limits(
            vector_bytes=vector_bytes,
            vector_registers=registers,
            pair_bytes=pair_bytes,
            threads=cpu_count(),
            parallel_varies=True,
            cache_bytes=_cache_bytes(2, 512 << 10),
            stream_bytes=last,
        )


def host_machine() -> str:
    """The machine we run on, as LLVM names it."""
    name = os.uname().machine.lower() if hasattr(os, "uname") else "unknown"
    return _SPELLINGS.get(name, name)


def _baseline(machine: str) -> str:
    return "x86-64" if machine == "x86_64" else "generic"


def _check_processor(text: str, machine: str, processor: str) -> None:
    if machine == "x86_64" and processor not in _IMPLIED:
        near = get_close_matches(processor, _IMPLIED, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise _malformed(text, f"no {machine} processor is named {processor!r}{hint}")
    if not _WORD.fullmatch(processor):
        raise _malformed(text, f"{processor!r} is no name of a processor")


def _features(text: str, machine: str, words: list[str]) -> Iterator[str]:
    for word in words:
        name = word.removeprefix("+").removeprefix("-")
        known = name in _X86_FEATURES if machine == "x86_64" else _WORD.fullmatch(name)
        if not known:
            near = get_close_matches(name, _X86_FEATURES, n=1) if machine == "x86_64" else []
            hint = f"; did you mean {near[0]}?" if near else ""
            raise _malformed(text, f"{machine} has no feature {word!r}{hint}")
        yield ("-" if word.startswith("-") else "+") + name


def _malformed(text: str, problem: str) -> SettingError:
    return SettingError(
        f"the processor {text!r} is not understood: {problem}. To name one, {_FORM}."
    )


# This machine

_LINUX_NAMES: Final = {
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "pni": "sse3",
}


@cache
def _host_lines() -> Mapping[str, str]:
    """The first processor's facts as Linux lists them; empty elsewhere."""
    facts: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if not line.strip():
                    break
                facts[name.strip()] = value.strip()
    except OSError:
        pass
    return facts


_OWN_BYTES: Final = 12 << 20
"""Most bytes of the last cache for each of our processors: a virtual machine is told of the whole
cache of its host. A copy whose result is read next is faster by stores past the caches from 16 to
32 MB on 2 processors of a Zen 4 with 32 MB for 8, from 8 to 16 MB on 2 of a Xeon with 480 MB."""


@cache
def _cache_bytes(level: int, usual: int) -> int:
    """Bytes of the first core's second or third cache as Linux tells them ("512K"), or `usual`."""
    try:
        file = Path(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size")
        return int(file.read_text("ascii").strip("K\n")) << 10
    except (OSError, ValueError):
        return usual


@cache
def _host_features() -> frozenset[str]:
    facts = _host_lines()
    words = facts.get("flags", facts.get("Features", "")).split()
    if not words and sys.platform == "darwin":
        words = _darwin("machdep.cpu.features machdep.cpu.leaf7_features").lower().split()
    return frozenset(_LINUX_NAMES.get(word, word) for word in words)


@cache
def _host_model() -> str:
    facts = _host_lines()
    names = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "CPU variant")
    return "/".join(facts[name] for name in names if name in facts)


def _darwin(names: str) -> str:
    import subprocess  # noqa: PLC0415  a start-up cost that macOS alone should bear

    command = ["/usr/sbin/sysctl", "-n", *names.split()]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
