"""What can be wrong with files: an error names file, row group and column; no value changes."""

import base64
import collections
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from tutorlib.columns import Chunk, encoded_column
from tutorlib.loader import KerasSequenceLoader
from tutorlib.ops import Normalize
from tutorlib.parquet import ParquetError, ParquetSink, ParquetSource
from tutorlib.workflow import Workflow

ROWS = 3000


NAMES = ["i", "f", "s", "g", "n"]


def table():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "i": rng.integers(0, 1 << 40, ROWS),
            "f": rng.random(ROWS, dtype="float32"),
            "s": [f"s{k}" for k in rng.integers(0, 50, ROWS)],
            "g": [list(range(k % 4)) for k in range(ROWS)],
            "n": pa.array([None if k % 3 == 0 else k % 10 for k in range(ROWS)]),
        }
    )


def damaged_copies(path, count, seed):
    """Yield (row group, column) after flipping a bit of its pages in the file; mend it after."""
    rng, data, footer = np.random.default_rng(seed), path.read_bytes(), pq.read_metadata(path)
    for number in range(count):
        position = int(rng.integers(footer.num_row_groups))
        leaf = footer.row_group(position).column(number % footer.num_columns)
        start = leaf.dictionary_page_offset or leaf.data_page_offset
        changed = bytearray(data)
        changed[start + int(rng.integers(leaf.total_compressed_size))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        yield position, leaf.path_in_schema.split(".")[0]
    path.write_bytes(data)


@pytest.mark.parametrize("writer", ["ParquetSink", "pyarrow"])
def test_a_flipped_bit_is_an_error_that_names_its_place_or_changes_nothing(tmp_path, writer):
    path = tmp_path / "a.parquet"
    if writer == "ParquetSink":
        with ParquetSink(path, row_group_rows=1000) as sink:
            sink.write(table())
    else:
        pq.write_table(table(), path, row_group_size=1000, write_page_checksum=True)
    whole = [ParquetSource(path).read(k) for k in range(3)]
    unnoticed = 0
    for position, name in damaged_copies(path, count=100, seed=1):
        place = rf"row group {position} of .*a\.parquet, column '{name}': cannot be read"
        source = ParquetSource(path)
        with contextlib.suppress(ParquetError):
            values = source.read(position, [name])[name].tolist()
            unnoticed += 1  # a bit of a page header that is not used
            assert values == whole[position][name].tolist()
            continue
        for other in (source, ParquetSource(path).with_strings_as(encoded_column)):
            with pytest.raises(ParquetError, match=place):
                other.read(position, [name])
            with pytest.raises(ParquetError, match=place):
                other.read(position)
            with pytest.raises(ParquetError, match=place):
                other.read(position, NAMES, 990, 1000)
        for other in range(3):
            if other != position:
                assert source.read(other).num_rows == 1000
    assert unnoticed < 20


TABLE = pa.table({"i": np.arange(100, dtype="int32"), "x": np.linspace(0, 1, 100)})


def write(folder, name, table=TABLE, **options):
    pq.write_table(table, folder / name, **options)
    return folder / name


def test_a_truncated_file(tmp_path):
    write(tmp_path, "a.parquet")
    path = write(tmp_path, "b.parquet")
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(ParquetError, match=r"b\.parquet: not a whole Parquet file \(.*Write it ag"):
        ParquetSource(tmp_path)


def test_a_file_with_any_bit_of_its_footer_flipped_opens_or_is_refused_by_name(tmp_path):
    table = pa.table({"i": pa.array([1, 2], pa.int8()), "x": [0.5, 1.5]})
    path = write(tmp_path, "a.parquet", table, store_schema=False)
    data = path.read_bytes()
    start, refused = len(data) - 8 - int.from_bytes(data[-8:-4], "little"), {}
    for bit in range(8 * start, 8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            ParquetSource(path)
        except ParquetError as error:
            refused[str(error)] = type(error.__cause__)
    assert all("a.parquet" in message for message in refused)
    assert UnicodeDecodeError in refused.values()  # of a name


def test_any_flipped_bit_of_a_footer_that_the_sink_wrote_is_found(tmp_path):
    """Without a checksum, some lose row groups in silence, and some end the process in Arrow."""
    path = tmp_path / "a.parquet"
    with ParquetSink(path, row_group_rows=1000) as sink:
        sink.write(table())
    data, want = path.read_bytes(), ParquetSource(path).fingerprint()
    key = data.rindex(b"tutorlib.footer_crc32")
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    for bit in range(8 * (len(data) - footer_bytes), 8 * len(data), 11):
        if key <= bit // 8 < key + 23:  # without its name, there is no checksum
            continue
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ParquetError, match=r"a\.parquet: "):
            ParquetSource(path)
    path.write_bytes(data)
    assert ParquetSource(path).fingerprint() == want


def test_row_counts_of_a_foreign_footer_that_contradict_each_other_are_refused(tmp_path):
    path = write(tmp_path, "a.parquet", pa.table({"x": np.arange(96)}), row_group_size=32)
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused = collections.Counter()
    for bit in range(8 * start, 8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            footer = pq.read_metadata(pa.BufferReader(bytes(flipped)))
            rows = [footer.row_group(k).num_rows for k in range(footer.num_row_groups)]
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            continue
        if rows != [32] * 3 or footer.num_rows != 96:
            path.write_bytes(flipped)
            with pytest.raises(ParquetError, match=r"a\.parquet: .*(rows, .* damaged|length)"):
                ParquetSource(path)
            refused[sum(rows)] += 1
    assert refused[64]  # of a row group that is not listed


class Keys(encryption.KmsClient):
    """A key server that keeps nothing secret."""

    def __init__(self, _):
        encryption.KmsClient.__init__(self)

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize(
    ("plain_footer", "words"),
    [(True, ".*as with encrypted columns"), (False, "its footer is encrypted")],
)
def test_encrypted_columns_are_refused(tmp_path, plain_footer, words):
    """Arrow ends the process if it is asked for their statistics."""
    settings = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["x"]}, plaintext_footer=plain_footer
    )
    keys = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), settings
    )
    pq.write_table(TABLE, tmp_path / "a.parquet", encryption_properties=keys)
    with pytest.raises(ParquetError, match=rf"a\.parquet: {words}.*without encryption"):
        ParquetSource(tmp_path)


def test_files_and_row_groups_without_rows_are_left_out(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", TABLE.schema) as writer:
        for rows in (0, 3, 0, 0, 2, 0):
            writer.write_table(TABLE.slice(0, rows))
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 6
    write(tmp_path, "b.parquet", TABLE.slice(0, 0))
    source = ParquetSource(tmp_path)
    assert (source.num_rows, len(source), len(source.files)) == (5, 2, 2)
    assert Chunk.concat(list(source.chunks()))["i"].tolist() == [0, 1, 2, 0, 1]
    empty = write(tmp_path, "b.parquet", pa.table({"i": pa.array([], pa.int64()), "x": [0.0][:0]}))
    assert ParquetSource(tmp_path).num_rows == 5
    assert (ParquetSource(empty).num_rows, list(ParquetSource(empty).chunks())) == (0, [])


CHANGES = {
    "removed": lambda path: path.unlink(),
    "cut short": lambda path: os.truncate(path, 100),
    "rewritten": lambda path: pq.write_table(TABLE.slice(0, 50), path),
    "rewritten with the same size": lambda path: path.write_bytes(path.read_bytes()),
    "appended to": lambda path: path.open("ab").write(b"x"),
    "replaced": lambda path: (path.rename(path.with_suffix(".old")), write(path.parent, path.name)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_after_it_was_opened(tmp_path, change):
    path = write(tmp_path, "a.parquet", row_group_size=50)
    os.utime(path, (1e9, 1e9))
    source = ParquetSource(path, filters=[("x", "!=", 0.5)])
    source.read(0, None, 0, 10)  # a stream stays open, whose file is the old one
    CHANGES[change](path)
    has = "has been removed" if change == "removed" else "has changed"
    for position, bounds in ((0, (10, 20)), (0, ()), (1, ())):
        with pytest.raises(ParquetError, match=rf"row group {position} of .*a\.parquet: the file "
                           f"{has} since it was opened. Open"):  # fmt: skip
            source.read(position, None, *bounds)


def test_a_file_whose_content_stays_may_get_other_permissions_times_of_access_and_links(tmp_path):
    path = write(tmp_path, "a.parquet")
    source = ParquetSource(path)
    path.chmod(0o400)
    os.utime(path, ns=(0, path.stat().st_mtime_ns))
    os.link(path, tmp_path / "a backup")
    assert source.read(0)["i"].tolist() == TABLE["i"].to_pylist()


def numbers(sign=1, row_group_rows=200_000):
    """200,000 rows whose two columns are equal up to the sign, as bytes of a file of fixed size."""
    x = sign * np.arange(200_000.0)
    buffer = pa.BufferOutputStream()
    table, plain = pa.table({"x": x, "y": x}), {"compression": "none", "use_dictionary": False}
    pq.write_table(table, buffer, row_group_rows, **plain)
    return buffer.getvalue().to_pybytes()


def overwrite(path, data):
    with open(path, "r+b") as file:
        file.write(data)


def rows_of_steps(path):
    for chunk in ParquetSource(path).tables(0, ["x", "y"], 10_000):
        yield from np.stack([chunk["x"], chunk["y"]], 1)


def rows_that_a_filter_lets_pass(path):
    for chunk in ParquetSource(path, [("x", "!=", 5)]).tables(0, ["x", "y"], 10_000):
        yield from np.stack([chunk["x"], chunk["y"]], 1)


def rows_of_a_loader(path):
    loader = KerasSequenceLoader(path, 1000, label_names=["y"], buffer_size=10_000, shuffle=False)
    for inputs, labels in loader:
        yield from np.stack([np.ravel(inputs["x"]), np.ravel(labels)], 1)


@pytest.mark.parametrize(
    ("read", "row_group_rows"),
    [
        (rows_of_steps, 200_000),
        (rows_that_a_filter_lets_pass, 200_000),
        (rows_of_a_loader, 20_000),  # which decodes row groups of so few rows at once
    ],
)
def test_a_file_overwritten_while_it_is_read_ends_in_an_error(tmp_path, read, row_group_rows):
    path = tmp_path / "a.parquet"
    path.write_bytes(numbers(1, row_group_rows))
    iterator, seen = read(path), []
    for _ in range(3):
        seen.append(next(iterator))
    overwrite(path, numbers(-1, row_group_rows))
    with pytest.raises(ParquetError, match=r"row group \d of .*a\.parquet: the file has changed"):
        seen.extend(iterator)
    assert (np.array(seen) >= 0).all()  # rows of one file only


def test_a_file_overwritten_while_a_workflow_reads_it_ends_in_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(numbers())
    source = ParquetSource(path)
    fitted = Workflow(["x"] >> Normalize(), ["y"]).fit(source)
    overwrite(path, numbers(-1))
    with pytest.raises(ParquetError, match="the file has changed since it was opened"):
        Workflow(["x"] >> Normalize()).fit(source)
    with pytest.raises(ParquetError, match="the file has changed since it was opened"):
        fitted.transform_to_parquet(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_a_file_cut_short_while_it_is_read_is_an_error_and_no_signal(tmp_path):
    """A memory-mapped file would end the process here, with SIGBUS."""
    table = pa.table({name: np.random.default_rng(0).random(100_000) for name in "abc"})
    path = write(tmp_path, "a.parquet", table, use_dictionary=False)
    steps = ParquetSource(path).tables(0, ["a", "b", "c"], 10_000)
    assert next(steps).num_rows == 10_000
    os.truncate(path, 1000)
    with pytest.raises(ParquetError, match="has changed since it was opened"):
        list(steps)


READ = """
import os, sys
from tutorlib.parquet import ParquetSource

if os.geteuid() == 0:  # root may read everything
    os.setuid(65534)
try:
    ParquetSource(sys.argv[1])
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no such permissions")
@pytest.mark.parametrize("forbidden", ["a.parquet", "folder"])
def test_what_may_not_be_read(forbidden):
    """Also a folder: to leave it out silently would lose rows."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "folder").mkdir()
        write(root, "a.parquet")
        write(root / "folder", "b.parquet")
        root.chmod(0o755)
        (root / forbidden).chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", READ, name], capture_output=True, text=True, timeout=60
        )
        (root / forbidden).chmod(0o755)
    assert done.stderr == ""
    kind = "ParquetError" if forbidden == "a.parquet" else "PermissionError"
    assert done.stdout.startswith(kind)
    assert "Permission denied" in done.stdout
    assert str(root / forbidden) in done.stdout


def write_set(folder, **options):
    with ParquetSink(folder, row_group_rows=10, rows_per_file=40, **options) as sink:
        sink.write(TABLE)


def changed(one, other):
    one, other = (ParquetSource(paths).fingerprint() for paths in (one, other))
    assert one.keys() == other.keys()
    return {name for name in one if one[name] != other[name]}


def test_a_fingerprint_tells_what_is_different(tmp_path):
    write_set(tmp_path / "a")
    files = ParquetSource(tmp_path / "a").files
    metadata = ParquetSource(tmp_path / "a").fingerprint()
    assert (metadata["files"], metadata["row_groups"], metadata["rows"]) == (3, 10, 100)
    assert changed(files, files[:2]) == {
        "files", "row_groups", "rows", "chosen_rows", "file_names", "footers",
    }  # fmt: skip
    assert changed(files, files[::-1]) == {"chosen_rows", "file_names", "footers"}
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, name in ((one, "x"), (two, "y")):
        folder.mkdir()
        write(folder, "a.parquet", TABLE.select(["x"]).rename_columns([name]))
    assert changed(one, two) == {"column_types", "footers"}
    write(two, "a.parquet", TABLE.select(["x"]), compression="gzip")
    assert changed(one, two) == {"footers"}
    write(one, "b.parquet", TABLE.select(["x"]))
    write(two, "c.parquet", TABLE.select(["x"]))
    write(two, "a.parquet", TABLE.select(["x"]))
    assert changed(one, two) == {"file_names"}
    three, four = tmp_path / "three", tmp_path / "four"
    for folder, day in ((three, 3), (four, 4)):
        (folder / f"day={day}").mkdir(parents=True)
        write(folder / f"day={day}", "a.parquet", TABLE.select(["x"]))
    assert changed(three, four) == {"file_names"}
    some = ParquetSource(one, filters=[("x", ">=", 0.0)]).fingerprint()
    assert some["filters"].startswith("(x >= 0)")
    conditions = (pc.field("x") >= 0.0, [("x", ">=", np.nextafter(0, 1))], [("x", ">", 0.0)])
    others = [ParquetSource(one, filters=f).fingerprint()["filters"] for f in conditions]
    assert others[0] == some["filters"]
    assert len({*others}) == 3
    whole = ParquetSource(one)
    before = whole.fingerprint()
    before["rows"] = 0  # a copy
    assert whole.head(2).fingerprint()["rows"] == 2 != whole.fingerprint()["rows"] > 0
