"""Loader: Parquet to shuffled batches for Keras. Start reading at `plan.py`, then `loader.py`."""

from tutorlib.loader.lists import MultiHot
from tutorlib.loader.loader import KerasSequenceLoader
from tutorlib.loader.shuffling import ShuffleQuality, shuffle_quality

__all__ = ["KerasSequenceLoader", "MultiHot", "ShuffleQuality", "shuffle_quality"]
