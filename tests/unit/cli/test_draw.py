"""Images as text."""

from __future__ import annotations

import io

import numpy

from tinycore.cli.draw import ASCII_SHADES, SHADES, beside, picture, ramp_for, shrunk


def test_a_pixel_is_two_characters_and_the_darkest_is_full() -> None:
    image = numpy.array([[0, 4], [8, 16]])

    assert picture(image) == ["  ░░", "▒▒██"]


def test_plain_shades_have_the_same_steps() -> None:
    assert picture(numpy.array([[0, 4, 8, 12, 16]]), ASCII_SHADES) == ["  ..++**##"]


def test_an_image_without_ink_is_blank() -> None:
    assert picture(numpy.zeros((1, 3))) == [" " * 6]


def test_a_large_image_is_averaged_in_blocks() -> None:
    image = numpy.zeros((4, 4))
    image[:2, 2:] = 8

    assert shrunk(image, 2).tolist() == [[0, 8], [0, 0]]


def test_a_small_image_stays() -> None:
    assert shrunk(numpy.ones((3, 2)), 10).shape == (3, 2)


def test_a_side_that_blocks_do_not_divide_is_padded() -> None:
    assert shrunk(numpy.ones((28, 28)), 10).shape == (10, 10)


def test_blocks_stand_beside_each_other() -> None:
    assert beside([["ab", "c"], ["d"]], gap=1) == ["ab d", "c"]


def test_shades_follow_what_the_stream_can_encode() -> None:
    assert ramp_for(io.TextIOWrapper(io.BytesIO(), "utf-8")) == SHADES
    assert ramp_for(io.TextIOWrapper(io.BytesIO(), "ascii")) == ASCII_SHADES
    assert ramp_for(io.TextIOWrapper(io.BytesIO(), "latin-1")) == ASCII_SHADES
    assert ramp_for(io.StringIO()) == ASCII_SHADES
