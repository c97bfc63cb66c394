"""Exact sums of all values or of groups: nothing is rounded, so order does not matter."""

from __future__ import annotations

import collections
import math
from fractions import Fraction

import numpy as np

from tutorlib.columns import Array, array_namespace
from tutorlib.hashing import blocks_of

LIMB_BITS = 26
_TINY = 2.0**-900
_TINY_SQUARE = 2.0**-960  # below, the error of a square is no float64
_LARGEST_TOP = 400  # exponent of values whose limbs have squares within the range of float64
_LIMB_ROWS = 8192  # values in a step: 64 KiB; OpenBLAS uses one thread for so few
_SCALE_LIMBS = 23  # a tiny value times 2**(26 * 23) is large enough to square

_Sums = collections.Counter[int]  # {e: integer}: the sum of integer * 2**-e


def exact_sum(values: Array) -> Fraction:
    """Return the sum of finite float64 values, unrounded.

    It adds the leading bits of all values of a block as integers of one power of two, as many bits
    as keep their sum below 2**63, then the remaining bits likewise. So the sum does not depend on
    chunks, workers or the device. A million values of similar size take about 4 ms.

    Args:
        values: float64 [n], finite, below 2**900 in magnitude.

    Example:
        >>> import numpy as np
        >>> exact_sum(np.array([1e100, 1.0, -1e100]))
        Fraction(1, 1)

    Source: J. Demmel, H. D. Nguyen, "Parallel reproducible summation", IEEE Trans. Comput. (2015).
    """
    xp, sums = array_namespace(values), _Sums()
    for block in blocks_of(len(values), xp):
        _add(sums, values[block])
    return _total(sums)


def exact_square_sum(values: Array) -> Fraction:
    """Return the sum of the squares of finite float64 values [n], unrounded."""
    xp, sums = array_namespace(values), _Sums()
    for block in blocks_of(len(values), xp):
        part = values[block]
        with np.errstate(over="ignore"):
            short = bool((part.astype(np.float32) == part).all())  # 24 bits
        if short:  # squares are exact
            _add(sums, part * part)
            continue
        for addend, limbs in squares(part):
            _add(sums, addend, moved=LIMB_BITS * limbs)
    return _total(sums)


def exact_sums(values: Array) -> tuple[Fraction, Fraction]:
    """Return (`exact_sum`, `exact_square_sum`) of finite float64 values [n] below 2**400."""
    if array_namespace(values) is np and (found := _sums_of_limbs(values)) is not None:
        return found
    return exact_sum(values), exact_square_sum(values)


def _sums_of_limbs(values: np.ndarray) -> tuple[Fraction, Fraction] | None:
    """Return what `exact_sums` does, in fewer passes; None if it needs a fourth limb.

    Each value is split into up to three limbs, integers of 20 bits with a sign, times a power of
    two. Sums and products of the limbs of a block add up to less than 2**53 of their unit, so that
    float64 rounds none of them in whatever order.
    """
    largest = float(np.abs(values).max()) if len(values) else 0.0
    top = math.frexp(largest)[1]
    if abs(top) > _LARGEST_TOP:
        return None
    units = [top - 19 - 20 * k for k in range(3)]  # a limb is a multiple of 2**unit
    sums, squared = _Sums(), _Sums()
    for start in range(0, len(values), _LIMB_ROWS):
        rest = values[start : start + _LIMB_ROWS]
        limbs: list[tuple[int, np.ndarray]] = []
        for unit in units:
            limb = rest + 1.5 * 2.0 ** (52 + unit)  # has no bits below `unit`: rounds
            limb -= 1.5 * 2.0 ** (52 + unit)
            rest = rest - limb
            sums[-unit] += int(float(limb.sum()) * 2.0**-unit)
            squared[-2 * unit] += int(float(limb.dot(limb)) * 2.0 ** (-2 * unit))
            for other, larger in limbs:
                product = float(limb.dot(larger)) * 2.0 ** (-unit - other)
                squared[-unit - other] += 2 * int(product)
            limbs.append((unit, limb))
        if rest.any():
            return None
    return _total(sums), _total(squared)


def _add(sums: _Sums, part: Array, moved: int = 0) -> None:
    """Add values * 2**-moved, at most a block and below 2**900 in magnitude, to `sums`."""
    bits = 62 - len(part).bit_length()
    while (largest := max(float(part.max()), -float(part.min()))) != 0:
        if largest < _TINY:  # too small to multiply by one power of two
            part, moved = part * 2.0**600, moved + 600
            continue
        e = bits - math.frexp(largest)[1]
        whole = (part * 2.0**e).astype(np.int64)
        sums[e + moved] += int(whole.sum())
        part = part - whole * 2.0**-e


def _total(sums: _Sums) -> Fraction:
    lowest = max([0, *sums])
    return Fraction(sum(whole << lowest - e for e, whole in sums.items()), 1 << lowest)


def squares(values: Array) -> list[tuple[Array, int]]:
    """Return the addends (float64 [n], limbs) of x * x: exactly the sum of addend * 2**(-26 limbs).

    Args:
        values: float64 [n], below 2**400 in magnitude.
    """
    square, error = _square_and_error(values)
    tiny = square < _TINY_SQUARE
    if not bool(tiny.any()) or not bool(values[tiny].any()):
        return [(square, 0), (error, 0)]
    xp = array_namespace(values)
    large = xp.where(tiny, 0.0, values)
    scaled = xp.where(tiny, values, 0.0) * 2.0 ** (LIMB_BITS * _SCALE_LIMBS)
    return [
        *((addend, 0) for addend in _square_and_error(large)),
        *((addend, 2 * _SCALE_LIMBS) for addend in _square_and_error(scaled)),
    ]


def _square_and_error(values: Array) -> tuple[Array, Array]:
    """Return (square, error), float64 [n] each: x * x is exactly square + error.

    The values are 0 or of a magnitude above 2**-480 and below 2**500.

    Source: T. J. Dekker, "A floating-point technique for extending the available precision",
    Numerische Mathematik 18 (1971).
    """
    square = values * values
    big = values * 134217729.0
    high = big - (big - values)
    low = values - high
    return square, ((high * high - square) + 2 * high * low) + low * low


def sqrt_of_ratio(numerator: int, denominator: int) -> float:
    """Return the square root of numerator / denominator, rounded, however small the ratio is.

    Example:
        >>> sqrt_of_ratio(1, 10**400)
        1e-200
    """
    k = (denominator.bit_length() - numerator.bit_length()) // 2
    ratio = (numerator << 2 * max(k, 0)) / (denominator << 2 * max(-k, 0))  # about 1
    return math.ldexp(math.sqrt(ratio), -k)


def limb_sums(values: np.ndarray, groups: np.ndarray, num_groups: int) -> dict[int, np.ndarray]:
    """Return the unrounded sum of each group, as integers of several powers of two.

    Each value is split into integers below 2**26, called limbs, which are summed in int64: exactly
    and in any order, up to 2**37 values in a group.

    Args:
        values: float64 [n], finite.
        groups: int64 [n], the group of each value, in [0, num_groups).
        num_groups: length of the result.

    Returns:
        {limb: int64 [num_groups]}: a group's sum is the sum of limbs[limb] * 2**(26 * limb).

    Example:
        >>> limb_sums(np.array([0.5, 3.0, 2.0**30]), np.array([0, 1, 1]), 2)
        {1: array([ 0, 16]), 0: array([0, 3]), -1: array([33554432,        0])}
    """
    result: dict[int, np.ndarray] = {}
    largest = float(np.abs(values).max()) if len(values) else 0.0
    limb = (math.frexp(largest)[1] - 1) // LIMB_BITS
    rest = values
    while len(rest):
        leading = np.trunc(np.ldexp(rest, -LIMB_BITS * limb))
        if leading.any():
            result[limb] = np.zeros(num_groups, dtype=np.int64)
            np.add.at(result[limb], groups, leading.astype(np.int64))
        rest = rest - np.ldexp(leading, LIMB_BITS * limb)
        left = np.flatnonzero(rest)
        rest, groups = rest[left], groups[left]
        limb -= 1
    return result


def as_integers(limbs: dict[int, np.ndarray], num_groups: int) -> tuple[np.ndarray, int]:
    """Return (integers [num_groups], e >= 0): each group's sum is integer * 2**-e.

    They are int64 if the sum of all of them cannot exceed that, else Python integers.
    """
    lowest = min([0, *limbs])
    scales = {limb: 1 << LIMB_BITS * (limb - lowest) for limb in limbs}
    sizes = {limb: int(np.abs(sums).sum(dtype=np.float64)) for limb, sums in limbs.items()}
    most = sum(size * scales[limb] for limb, size in sizes.items())
    total = np.zeros(num_groups, dtype=np.int64 if most < 2**62 else object)
    for limb, sums in limbs.items():
        if sizes[limb]:
            total += sums.astype(total.dtype) * scales[limb]
    return total, -LIMB_BITS * lowest


def ratios(totals: np.ndarray, counts: np.ndarray, e: int) -> np.ndarray:
    """Return float64 [n] totals / (counts * 2**e), rounded once; NaN where a count is 0.

    Example:
        >>> ratios(np.array([6, 5]), np.array([4, 0]), 1)
        array([0.75,  nan])
    """
    if e < 960 and totals.dtype != object and np.abs(totals).max(initial=0) <= 2**53:  # exact
        with np.errstate(divide="ignore", invalid="ignore"):
            found = totals / np.ldexp(counts.astype(np.float64), e)
        return np.where(counts > 0, found, np.nan)
    pairs = zip(totals.tolist(), counts.tolist(), strict=True)
    return np.array([t / (n << e) if n else math.nan for t, n in pairs], dtype=np.float64)
