"""Loader: Parquet to shuffled batches for Keras. Start reading at `plan.py`, then `loader.py`."""

from tutorlib.loader.loader import KerasSequenceLoader
from tutorlib.loader.settings import MultiHot

__all__ = ["KerasSequenceLoader", "MultiHot"]
