"""Fit the polynomials of `lower/elementary.py` and `tensor/methods/special.py`, and print them.

    python benchmarks/fit_polynomials.py        # needs mpmath

Each is nearly minimax: a Chebyshev fit, in 60 digits, of what remains of a function once its exact
leading terms are taken out (Muller, "Elementary Functions", 3rd ed., chapters 3 and 11; the leading
terms and argument reductions are those of Cody & Waite, "Software Manual for the Elementary
Functions"). The printed error is relative to the function, before any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from mpmath import (
    asin,
    atan,
    chebyfit,
    cos,
    erf,
    erfc,
    exp,
    expm1,
    log,
    log1p,
    lu_solve,
    matrix,
    mp,
    mpf,
    pi,
    polyval,
    sin,
    sqrt,
    tan,
    taylor,
)  # fmt: skip

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


def asin_rest(z: mpf) -> mpf:
    """A with asin(x) = x + x**3 * A(x*x)."""
    if abs(z) < SMALL:
        return mpf(1) / 6 + 3 * z / 40 + 5 * z**2 / 112
    return (asin(sqrt(z)) / sqrt(z) - 1) / z


def atan_rest(z: mpf) -> mpf:
    """A with atan(x) = x + x**3 * A(x*x)."""
    if abs(z) < SMALL:
        return -mpf(1) / 3 + z / 5 - z**2 / 7
    return (atan(sqrt(z)) / sqrt(z) - 1) / z


def erf_ratio(z: mpf) -> mpf:
    """erf(x) / x where z = x*x."""
    if abs(z) < SMALL:
        return 2 / sqrt(pi) * (1 - z / 3 + z**2 / 10)
    return erf(sqrt(z)) / sqrt(z)


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


def fits_of_special(terms: tuple[int, int, int]) -> list[Fit]:
    """Polynomials of `tensor/methods/special.py` for one float type."""
    erf_terms, asin_terms, atan_terms = terms
    return [
        Fit("ERF", erf_ratio, (mpf(0), mpf(1)), erf_terms, erf_ratio, lambda z, r: r),
        Fit(
            "ASIN", asin_rest, (mpf(0), mpf(1) / 4), asin_terms,
            lambda z: asin(sqrt(z)) / sqrt(z), lambda z, r: 1 + z * r,
        ),
        Fit(
            "ATAN", atan_rest, (mpf(0), tan(pi / 8) ** 2), atan_terms,
            lambda z: atan(sqrt(z)) / sqrt(z), lambda z, r: 1 + z * r,
        ),
    ]  # fmt: skip


def log_erfc(last: int, terms: int, rounds: int = 25) -> tuple[list[mpf], mpf]:
    """log(1 - erf(x)) on [1, last], lowest power first, and the greatest error of erf by it.

    Least squares whose weights grow where the error is great (Lawson, 1961). An error here counts
    as much as 1 - erf(x) is of erf(x).
    """
    count = max(4 * terms, 80)
    xs = [1 + (1 - cos(pi * (k + mpf(1) / 2) / count)) / 2 * (last - 1) for k in range(count)]
    places = [2 * (x - 1) / (last - 1) - 1 for x in xs]
    counts = [erfc(x) / erf(x) for x in xs]
    weights, best = [mpf(1)] * count, (mpf("inf"), [mpf(0)])
    for _ in range(rounds):
        rows = [sqrt(w) * c for w, c in zip(weights, counts, strict=True)]
        system = matrix(
            [[row * s**j for j in range(terms)] for row, s in zip(rows, places, strict=True)]
        )
        right = matrix([row * log(erfc(x)) for row, x in zip(rows, xs, strict=True)])
        found = list(lu_solve(system, right))
        errors = [
            abs(polyval(found[::-1], s) - log(erfc(x))) * c
            for s, x, c in zip(places, xs, counts, strict=True)
        ]
        best = min(best, (max(errors), found), key=lambda pair: pair[0])
        mean = sum(errors) / count
        weights = [w * (e / mean + mpf("0.02")) for w, e in zip(weights, errors, strict=True)]
    scale, shift = mpf(2) / (last - 1), -mpf(2) / (last - 1) - 1
    powers, result = [mpf(1)], [mpf(0)] * terms
    for coefficient in best[1]:  # of a power of scale * x + shift
        result = [r + coefficient * p for r, p in zip(result, powers + [0] * terms, strict=False)]
        powers = [shift * a + scale * b for a, b in zip([*powers, 0], [0, *powers], strict=True)]
    return result, best[0]


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
    for name, special, last, tail in (
        ("float32", (7, 5, 5), 4, 7),
        ("float64", (13, 13, 11), 6, 17),
    ):
        print(f"--- {name}, special functions")
        for fit in fits_of_special(special):
            report(fit)
        coefficients, worst = log_erfc(last, tail)
        print(f"LOG_ERFC: error 2**{float(log(worst, 2)):.1f} of erf", *map(float, coefficients))
    print("--- 2/pi", two_over_pi(37), sep="\n")


if __name__ == "__main__":
    main()
