"""UCI Adult: who earned more than 50,000 dollars; lesson 07 converts its CSV files."""

from __future__ import annotations

from pathlib import Path

from data_prep.download import fetch

BASE_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}


def prepare(
    output: str | Path, *, source: str | Path | None = None, overwrite: bool = False
) -> None:
    """Fetch UCI Adult: raw/adult.data, for training, and raw/adult.test, for validation.

    Args:
        output: folder for raw/.
        source: local zip archive, folder with adult.data and adult.test, or one of the two files
            next to the other; None downloads them (6 MB, with checksums).
        overwrite: replace files from elsewhere.

    Raises:
        DataPrepError: if the download fails, a checksum is wrong, or files are missing or damaged.
    """
    if source is not None and Path(source).name in SHA256:
        source = Path(source).parent
    urls = {f"{BASE_URL}/{name}": digest for name, digest in SHA256.items()}
    fetch(output, source, urls, tuple(SHA256), copy=True, overwrite=overwrite)
    print(f"{output}/raw: adult.data and adult.test")
