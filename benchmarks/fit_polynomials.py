"""Fit the polynomials of `tinycore/lower/elementary.py`, and print them.

    python benchmarks/fit_polynomials.py        # needs mpmath

Each is nearly minimax: a Chebyshev fit, in 60 digits, of what remains of a function once its exact
leading terms are taken out (Muller, "Elementary Functions", 3rd ed., chapters 3 and 11; the leading
terms and argument reductions are those of Cody & Waite, "Software Manual for the Elementary
Functions"). The printed error is relative to the function, before any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from mpmath import chebyfit, cos, exp, expm1, log, log1p, mp, mpf, pi, polyval, sin, sqrt, taylor

mp.dps = 60
HALF_LN2: Final = log(2) / 2
SMALL: Final = mpf(10) ** -6


class Fit(NamedTuple):
    """The function to approximate: `rest(x)` on `interval`, where f(x) = whole(x, rest(x))."""

    name: str
    rest: Callable[[mpf], mpf]
    interval: tuple[mpf, mpf]
    terms: int
    function: Callable[[mpf], mpf]
    whole: Callable[[mpf, mpf], mpf]


def smooth(function: Callable[[mpf], mpf], at_zero: Callable[[mpf], mpf]) -> Callable[[mpf], mpf]:
    """The function, with its Taylor series where cancellation would spoil it."""

    def value(x: mpf) -> mpf:
        return function(x) if abs(x) > SMALL else at_zero(x)

    return value


def series(coefficients: list[mpf]) -> Callable[[mpf], mpf]:
    """A polynomial, lowest power first."""
    return lambda x: polyval(coefficients[::-1], x)


EXP_REST = smooth(lambda x: (expm1(x) - x) / x**2, series(taylor(exp, 0, 9)[2:]))
EXP2_REST = smooth(lambda x: (2**x - 1) / x, series(taylor(lambda x: mpf(2) ** x, 0, 9)[1:]))
LOG_REST = smooth(lambda x: (log1p(x) - x + x**2 / 2) / x**3, series(taylor(log1p, 0, 10)[3:]))


def log_ratio_rest(z: mpf) -> mpf:
    """R with log((1 + s) / (1 - s)) = 2*s + s * z * R(z) where z = s*s."""
    if abs(z) < SMALL:
        return sum(2 * z ** (k - 1) / (2 * k + 1) for k in range(1, 9))
    s = sqrt(z)
    return (log((1 + s) / (1 - s)) / s - 2) / z


def sin_rest(z: mpf) -> mpf:
    """S with sin(x) = x + x**3 * S(x*x)."""
    if abs(z) < SMALL:
        return sum((-1) ** k * z ** (k - 1) / mp.factorial(2 * k + 1) for k in range(1, 9))
    return (sin(sqrt(z)) / sqrt(z) - 1) / z


def cos_rest(z: mpf) -> mpf:
    """C with cos(x) = 1 - x**2/2 + x**4 * C(x*x)."""
    if abs(z) < SMALL:
        return sum((-1) ** k * z ** (k - 2) / mp.factorial(2 * k) for k in range(2, 9))
    return (cos(sqrt(z)) - 1 + z / 2) / z**2


EXP_RANGE = (-HALF_LN2, HALF_LN2)
EXP2_RANGE = (mpf(-1) / 2, mpf(1) / 2)
LOG_RANGE = (sqrt(mpf(1) / 2) - 1, sqrt(mpf(2)) - 1)
RATIO_RANGE = (mpf(0), ((sqrt(mpf(2)) - 1) / (sqrt(mpf(2)) + 1)) ** 2)
SINE_RANGE = (mpf(0), (pi / 4) ** 2)


def fits(name: str, terms: tuple[int, int, int, int, int]) -> list[Fit]:
    """The five polynomials of one float type."""
    exp_terms, exp2_terms, log_terms, sin_terms, cos_terms = terms
    logarithm = (
        Fit("LOG", LOG_REST, LOG_RANGE, log_terms, log1p, lambda x, r: x - x**2 / 2 + x**3 * r)
        if name == "float32"
        else Fit(
            "LOG_RATIO", log_ratio_rest, RATIO_RANGE, log_terms,
            lambda z: z * log_ratio_rest(z) + 2, lambda z, r: z * r + 2,
        )
    )  # fmt: skip
    return [
        Fit("EXP", EXP_REST, EXP_RANGE, exp_terms, exp, lambda x, r: 1 + x + x**2 * r),
        Fit("EXP2", EXP2_REST, EXP2_RANGE, exp2_terms, lambda x: 2**x, lambda x, r: 1 + x * r),
        logarithm,
        Fit(
            "SIN", sin_rest, SINE_RANGE, sin_terms,
            lambda z: sin(sqrt(z)) / sqrt(z), lambda z, r: 1 + z * r,
        ),
        Fit(
            "COS", cos_rest, SINE_RANGE, cos_terms,
            lambda z: cos(sqrt(z)), lambda z, r: 1 - z / 2 + z**2 * r,
        ),
    ]  # fmt: skip


def two_over_pi(words: int) -> str:
    """The binary digits of 2/pi after the point, 32 to a word, in hexadecimal."""
    mp.dps = words * 10 + 60
    return f"{int(mp.floor(2 / pi * mpf(2) ** (32 * words))):0{8 * words}x}"


def report(fit: Fit) -> None:
    """Print one polynomial, highest power first, and its greatest relative error."""
    coefficients = chebyfit(fit.rest, fit.interval, fit.terms)
    low, high = fit.interval
    worst = mpf(0)
    for step in range(1, 400):
        x = low + (high - low) * step / 400
        if abs(x) > SMALL:
            true = fit.function(x)
            worst = max(worst, abs(fit.whole(x, polyval(coefficients, x)) / true - 1))
    print(f"{fit.name}: relative error 2**{float(log(worst, 2)):.1f}")
    for coefficient in coefficients:
        print(f"    {float(coefficient)!r},")


def main() -> None:
    """Print every polynomial."""
    for name, terms in (("float32", (5, 6, 9, 3, 3)), ("float64", (11, 12, 7, 6, 6))):
        print(f"--- {name}")
        for fit in fits(name, terms):
            report(fit)
    print("--- 2/pi", two_over_pi(37), sep="\n")


if __name__ == "__main__":
    main()
