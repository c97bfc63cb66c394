"""Loader: Parquet to shuffled batches for Keras. Start reading at `plan.py`, then `loader.py`."""

from tutorlib.loader.layout import MultiHot
from tutorlib.loader.loader import KerasSequenceLoader

__all__ = ["KerasSequenceLoader", "MultiHot"]
