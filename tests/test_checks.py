"""Checks of arguments: what passes, and what the errors say."""

import re

import numpy as np
import pytest

from tutorlib.checks import check_bytes, check_choice, check_integer, check_positive


def test_an_integer_of_any_type_becomes_pythons():
    for value in (3, np.int8(3), np.uint64(3)):
        assert type(check_integer("x", value, at_least=0)) is int
    assert check_integer("x", 2**31 - 1, at_least=0, bits=31) == 2**31 - 1


@pytest.mark.parametrize(
    ("value", "bits", "message"),
    [
        (0, None, "x must be at least 1, got 0"),
        (1.0, None, "x must be an integer, at least 1, got 1.0"),
        ("7", 31, "x must be an integer, in [1, 2**31), got '7'"),
        (2**31, 31, "x must be in [1, 2**31), got 2147483648"),
        (0, 31, "x must be in [1, 2**31), got 0"),
    ],
)
def test_what_is_no_integer_in_range_is_refused(value, bits, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_integer("x", value, at_least=1, bits=bits)


def test_none_passes_as_a_positive_number_that_was_not_given():
    check_positive(rows=None, threads=1)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        check_positive(rows=None, threads=0)


def test_a_choice_is_one_of_those_listed():
    check_choice("device", "cpu", ("cpu", "gpu"))
    with pytest.raises(ValueError, match=r"device must be one of \('cpu', 'gpu'\), got 'tpu'"):
        check_choice("device", "tpu", ("cpu", "gpu"))


@pytest.mark.parametrize(
    ("value", "want"),
    [(1, 1), (np.int32(7), 7), (1e9, 10**9), ("1GB", 10**9), ("512 MiB", 2**29), (" .5 kb ", 500),
     ("1.5gib", 3 * 2**29), ("2TB", 2 * 10**12), ("100B", 100), ("3.KiB", 3072)],
)  # fmt: skip
def test_bytes_are_a_number_or_text_with_a_unit(value, want):
    assert check_bytes("budget", value) == want
    assert type(check_bytes("budget", value)) is int


@pytest.mark.parametrize(
    "value",
    [0, -1, 0.5, float("inf"), float("nan"), "", "100", "1G", "-1GB", "1e3MB", "1 000MB", "1,5GB",
     "GB", "0B", "0.1B", "1XB", "iB", "1GB 2MB", "\u0661GB", [1]],
)  # fmt: skip
def test_what_is_no_number_of_bytes_is_refused_with_the_forms_that_pass(value):
    message = f"text such as '1.5GB' or '512MiB', got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_bytes("budget", value)
