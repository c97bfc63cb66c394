"""Open text files by their first bytes: packed ones, encodings with a mark; refuse other kinds.

A name says little about a file: data.csv may be packed, or an Excel workbook. So the first bytes
decide, here and nowhere else. What is no text is refused with what it is, and what reads it.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import errno
import gzip
import io
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_prep.output import DataPrepError

HEAD_BYTES = 1 << 16  # that say what a file is
_WRITE = 'write that DataFrame with .to_parquet("FOLDER/part.parquet")'
_EXCEL = f"pandas.read_excel reads it: {_WRITE}, or save the sheet as CSV"
# Of files that are no text: {first bytes: (what it is, what to do)}. The short ones may begin a
# text too, so they count only before a byte that no text has.
KINDS = {
    b"PAR1": ("Parquet already", "Pass it to the loader"),
    b"ARROW1": ("an Arrow (Feather) file", f"pandas.read_feather reads it: {_WRITE}"),
    b"\xff\xff\xff\xff": ("a stream of Arrow", f"pyarrow.ipc.open_stream reads it: {_WRITE}"),
    b"FEA1": ("a Feather file", f"pandas.read_feather reads it: {_WRITE}"),
    b"ORC": ("an ORC file", f"pandas.read_orc reads it: {_WRITE}"),
    b"Obj\x01": ("an Avro file", f"polars.read_avro reads it: {_WRITE}"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an Excel file (.xls)", _EXCEL),
    b"SQLite format 3\0": ("an SQLite database", f"pandas.read_sql reads its tables: {_WRITE}"),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", f"pandas.read_hdf or h5py reads it: {_WRITE}"),
    b"\x93NUMPY": ("an array of NumPy", "numpy.load reads it: make a pyarrow.table of its columns"),
    b"%PDF-1.": ("a PDF document", "Take its tables out, or ask for the data as CSV"),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "Unpack it, and pass the files in it"),
    b"Rar!\x1a\x07": ("a RAR archive", "Unpack it, and pass the files in it"),
    b"\xff\x06\0\0sNaPpY": ("packed by Snappy", "Unpack it, and pass the file in it"),
}
_NO_TEXT = re.compile(rb"[\0-\x08\x0e-\x1f]")
_MARKS = {  # of encodings; utf-32 begins as utf-16 does
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def _open_zip(raw: Any) -> Any:
    """Return the stream of the only file in a zip archive."""
    archive = zipfile.ZipFile(raw)
    names = archive.namelist()
    for part, (what, remedy) in {
        "xl/": ("an Excel workbook", _EXCEL),
        "content.xml": ("an OpenDocument file", _EXCEL),
        "word/": ("a Word document", "Save its table as CSV"),
    }.items():
        if any(name.startswith(part) for name in names):
            raise DataPrepError(f"is {what}, no CSV. {remedy}.")
    if names and all(name.endswith(".npy") for name in names):
        raise DataPrepError("holds arrays of NumPy, no CSV. numpy.load reads them.")
    files = [  # without what macOS adds
        each for each in archive.infolist()
        if not each.is_dir() and not re.search(r"(^|/)(\.|__MACOSX/)", each.filename)
    ]  # fmt: skip
    if len(files) != 1:
        listed = ", ".join(each.filename for each in files[:5]) + ", ..." * (len(files) > 5)
        raise DataPrepError(
            f"is a zip archive of {len(files)} files ({listed}). Unpack it, and pass "
            "those that are CSV files with the same columns."
        )
    if files[0].flag_bits & 1:
        raise DataPrepError("is a zip archive with a password. Unpack it, and pass the file in it.")
    return archive.open(files[0])


def _open_arrow(codec: str) -> Callable[[Any], Any]:
    return lambda raw: pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec)


PACKED: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\x1f\x8b": ("gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ\0": ("xz", lzma.LZMAFile),
    b"\x28\xb5\x2f\xfd": ("Zstandard", _open_arrow("zstd")),
    b"\x04\x22\x4d\x18": ("LZ4", _open_arrow("lz4")),
    b"PK\x03\x04": ("zip", _open_zip),
    b"PK\x05\x06": ("zip", _open_zip),  # without files
}


def _packed(head: bytes) -> tuple[str, Callable[[Any], Any]] | None:
    for magic, form in PACKED.items():
        if head.startswith(magic) and (magic != b"BZh" or _NO_TEXT.search(head)):
            return form
    return None


_JSON = re.compile(
    r"""\s*(\[\s*)*(\{\s*("(\\.|[^"\\])*"\s*:|\})|\[\s*(["\d\]-]|true|false|null))"""
)


def _is_json(text: str) -> bool:
    """Whether a text begins as JSON does: `{"a": 1},5` is a row of CSV, `[id],[name]` a header."""
    if not _JSON.match(text):
        return False
    try:
        _, end = json.JSONDecoder().raw_decode(text.lstrip())
    except json.JSONDecodeError as error:  # at its end, if a long value was cut
        return error.pos > len(error.doc) - 6 or error.msg.startswith("Unterminated")
    except RecursionError:
        return True
    return re.match(r"[ \t]*([\r\n{]|$)", text.lstrip()[end:]) is not None


def _refusal(head: bytes, text: str) -> tuple[str, str] | None:
    """Return (what a file is that is no CSV, what to do) by its first bytes, or None."""
    for magic, kind in KINDS.items():
        if head.startswith(magic) and (len(magic) > 6 or _NO_TEXT.search(head)):
            return kind
    if head[257:262] == b"ustar":
        return "a tar archive", "Unpack it, and pass the files in it"
    start = text.lstrip()[:200].lower()
    if re.match(r"<!doctype html|<html|<head|<body|<table", start):
        return "an HTML page", "Was a page saved instead of the file? pandas.read_html reads tables"
    if start.startswith("<?xml"):
        return "XML", f"pandas.read_xml reads it: {_WRITE}"
    if not _is_json(text):
        return None
    if start.startswith("{") and re.match(r"\s*\{[^\n]*\}[ \t]*\r?(\n|$)", text):
        return (
            "JSON lines",
            "Read it by pyarrow.json.read_json, write it by pyarrow.parquet.write_table",
        )
    return "JSON", f"pandas.read_json reads a list of objects: {_WRITE}"


def _encoding(head: bytes, encoding: str) -> str:
    """Return the encoding of a file: that of its mark, or the one that is given."""
    given = codecs.lookup(encoding).name
    wide = given.startswith(("utf-16", "utf-32"))
    for mark, marked in _MARKS.items():
        if head.startswith(mark):
            name = marked.removesuffix("-sig")
            if given != "utf-8" and not given.startswith(name):
                raise DataPrepError(
                    f"begins with the byte order mark of {name}, so it is not encoded in "
                    f"{encoding}. Leave out --encoding."
                )
            return marked
    even, odd = head[::2].count(0), head[1::2].count(0)
    if wide and head and not even + odd:
        raise DataPrepError(f"is {not_encoded(encoding)}. It holds no zero byte.")
    if wide or not even + odd:
        return encoding
    if len(_NO_TEXT.findall(head)) > 0.04 * len(head):
        if min(even, odd) * 10 < max(even, odd) > 0.1 * len(head):
            order = "le" if odd > even else "be"
            raise DataPrepError(f"looks encoded in utf-16. Pass --encoding utf-16-{order}.")
        raise DataPrepError(
            "is no text: it holds zero and other control bytes. Export the data as CSV."
        )
    return encoding


def not_encoded(encoding: str) -> str:
    """Return the end of a message about bytes that an encoding does not have."""
    return f"not encoded in {encoding}: pass its --encoding, such as latin-1"


@contextlib.contextmanager
def open_text(path: Path, encoding: str) -> Iterator[tuple[Any, io.TextIOWrapper]]:
    """Yield (raw file, whose position is the progress; its text), unpacked.

    gzip, bzip2, xz, Zstandard, LZ4 and a zip archive of one file are unpacked while they are read.
    Line ends of every kind are read as LF. Bytes that the encoding does not have are escaped.

    Args:
        path: the file.
        encoding: its encoding; with utf-8, a byte order mark says which it is.

    Raises:
        DataPrepError: if the file is of a kind that is no CSV, is damaged, or has another encoding.
        OSError: if the file cannot be read.
    """
    try:
        unpack, form = _examine(path, encoding)
        with open(path, "rb") as raw:
            yield raw, io.TextIOWrapper(unpack(raw), form, errors="surrogateescape")
    except UnicodeError as error:
        raise DataPrepError(f"{path} is {not_encoded(encoding)} ({error}).") from error
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError) as error:
        # A number is of the file system, but for a place in the file that an archive has wrong.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        raise _damaged(path, error) from error


def _examine(path: Path, encoding: str) -> tuple[Callable[[Any], Any], str]:
    """Return (function that unpacks a file, its encoding)."""
    with open(path, "rb") as raw:
        name, unpack = _packed(raw.peek(8)) or ("", lambda raw: raw)
        try:
            head = unpack(raw).read(HEAD_BYTES)
            if name and (again := _packed(head)):
                raise DataPrepError(f"is packed twice: {again[0]} in {name}. Unpack it once.")
            kind = _refusal(head, "")
            form = "" if kind else _encoding(head, encoding)
            if kind := kind or _refusal(head, head.decode(form, errors="replace")):
                unpacked = f", packed by {name}. Unpack it" if name else ""
                raise DataPrepError(f"is {kind[0]}{unpacked}. {kind[1]}.")
        except DataPrepError as error:
            raise DataPrepError(f"{path} {error}") from error
        except (NotImplementedError, ValueError, struct.error) as error:  # of a damaged archive
            raise _damaged(path, error) from error
    return unpack, form


def _damaged(path: Path, error: Exception) -> DataPrepError:
    return DataPrepError(f"{path} cannot be unpacked ({error}). Fetch a damaged file again.")
