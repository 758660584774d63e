"""Inputs of a model from files: arrays, pictures, sounds, numbers; and what results look like."""

from __future__ import annotations

import json
import os
import wave
from pathlib import Path
from typing import Final

import numpy
from PIL import Image, ImageOps, UnidentifiedImageError

from tiny_onnx.runner import Description
from tinycore.errors import ArgumentError, FileFormatError

__all__ = ["PICTURES", "loaded"]

PICTURES: Final = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MEAN: Final = (0.485, 0.456, 0.406)
DEVIATION: Final = (0.229, 0.224, 0.225)
"""Statistics of ImageNet's pixels by which classifiers of photographs are trained."""
CROP: Final = 0.875
"""Part of a photograph's shorter side that classifiers are shown: 224 of 256 pixels."""
SIDE: Final = 224
"""Sides of pictures for a model that takes any."""
MOST_SECONDS: Final = 3600
"""Sounds longer than this are refused rather than held in memory."""


def loaded(text: str, wanted: Description, scale: str) -> numpy.ndarray:
    """The input that a file holds, or numbers as JSON, in the form that a model takes.

    Pictures are cropped at their center and resized to the sides of the input; `scale` is imagenet
    (normalized by its statistics), unit (0 to 1) or byte (0 to 255).
    """
    path = Path(text)
    suffix = path.suffix.lower()
    if not path.is_file() and suffix not in {*PICTURES, ".npy", ".wav"}:
        return numbers(text, wanted)
    if suffix in PICTURES:
        return picture(path, wanted, scale)
    if suffix == ".wav":
        return sound(path, wanted)
    if suffix == ".npy":
        return array(path)
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is no text, array, picture or sound: {error}") from error
    return numbers(content, wanted) if suffix == ".json" else numpy.array([content], object)


def numbers(text: str, wanted: Description) -> numpy.ndarray:
    """Numbers written as JSON."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(
            f"{text!r} is neither a file nor numbers as in [1, 2]: {error}"
        ) from None
    dtype = wanted.element.array if wanted.element is not None else None
    try:
        return numpy.asarray(content, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"{text!r} is not {wanted}: {error}") from None


def array(path: Path) -> numpy.ndarray:
    """An array that NumPy saved; nothing in it is run."""
    try:
        result = numpy.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise FileFormatError(f"{path} is not an array of NumPy: {error}") from error
    if not isinstance(result, numpy.ndarray):
        raise FileFormatError(f"{path} is an archive of arrays; give the file of one")
    return result


def sound(path: Path, wanted: Description) -> numpy.ndarray:
    """Samples of a WAV file from -1 to 1, channels averaged, in the rank that a model takes."""
    try:
        with wave.open(os.fspath(path), "rb") as file:
            if file.getnframes() > MOST_SECONDS * file.getframerate():
                raise FileFormatError(f"{path} is longer than {MOST_SECONDS} seconds.")
            frames = file.readframes(file.getnframes())
            width, channels = file.getsampwidth(), file.getnchannels()
    except (wave.Error, EOFError, OSError) as error:
        raise FileFormatError(f"{path} is not a WAV file of plain samples: {error}") from error
    kinds = {1: numpy.uint8, 2: numpy.int16, 4: numpy.int32}
    if width == 3:
        parts = numpy.frombuffer(frames, numpy.uint8).reshape(-1, 3)
        frames, width = numpy.pad(parts, ((0, 0), (1, 0))).tobytes(), 4
    if width not in kinds:
        raise FileFormatError(f"{path} has samples of {width} bytes; 1 to 4 are supported.")
    samples: numpy.ndarray = numpy.frombuffer(frames, kinds[width]).astype(numpy.float32)
    samples = (samples - 128) / 128 if width == 1 else samples / 2 ** (8 * width - 1)
    mono: numpy.ndarray = samples.reshape(-1, channels).mean(1)
    rank = len(wanted.shape) if wanted.shape is not None else 2
    return mono.reshape(*[1] * (rank - 1), -1)


def picture(path: Path, wanted: Description, scale: str) -> numpy.ndarray:
    """A picture as an input of shape (N, 3, H, W) or (N, H, W, 3), in grays where that has 1."""
    shape = wanted.shape or (1, 3, SIDE, SIDE)
    if len(shape) != 4:
        raise ArgumentError(f"a picture needs an input of four axes, and this is {wanted}.")
    is_last = shape[3] in (1, 3) and shape[1] not in (1, 3)
    height, width = shape[1:3] if is_last else shape[2:4]
    channels = shape[3] if is_last else shape[1]
    sides = [side if isinstance(side, int) else SIDE for side in (height, width)]
    try:
        with Image.open(path) as image:
            pixels = fitted(shown(image).convert("L" if channels == 1 else "RGB"), sides)
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise FileFormatError(f"{path} cannot be read as a picture: {error}") from error
    pixels = pixels.reshape(*sides, -1)
    if wanted.element is not None and wanted.element.array.kind not in "iu":
        pixels = scaled(pixels.astype(numpy.float32), scale).astype(wanted.element.array)
    return pixels[None] if is_last else numpy.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def shown(image: Image.Image) -> Image.Image:
    """A picture as people see it: upright, on white where it is transparent, 16 bits as 8."""
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F"):
        raise ValueError(f"it has 32 bits for a pixel (mode {image.mode}); save it with 8 or 16")
    if image.mode.startswith("I"):  # Pillow would make white of all from 255 on
        return Image.fromarray((numpy.asarray(image) // 257).astype(numpy.uint8))
    if not image.has_transparency_data:
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))


def fitted(image: Image.Image, sides: list[int]) -> numpy.ndarray:
    """The center of a picture at a size: its shorter side is first brought to size / CROP."""
    height, width = sides
    factor = max(height / image.height, width / image.width) / CROP
    whole = (max(width, round(image.width * factor)), max(height, round(image.height * factor)))
    image = image.resize(whole, Image.Resampling.BILINEAR)
    left, top = (whole[0] - width) // 2, (whole[1] - height) // 2
    return numpy.asarray(image.crop((left, top, left + width, top + height)))


def scaled(pixels: numpy.ndarray, scale: str) -> numpy.ndarray:
    """Pixels from 0 to 255 in the range that a model was trained on."""
    if scale == "byte":
        return pixels
    result: numpy.ndarray = pixels / 255
    if scale == "imagenet" and result.shape[-1] == 3:
        result = (result - MEAN) / DEVIATION
    return result
