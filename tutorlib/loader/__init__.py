"""Loader: Parquet to shuffled batches of tensors for Keras.

`loader` composes the rest: `plan` says which row goes to which batch, `scatter` copies it there,
`pipeline` runs this on threads ahead of the consumer, `tensors` makes what Keras takes.
"""

from tutorlib.loader.loader import KerasSequenceLoader
from tutorlib.loader.plan import EpochPlan
from tutorlib.loader.shuffling import ShuffleQuality, shuffle_quality

__all__ = ["EpochPlan", "KerasSequenceLoader", "ShuffleQuality", "shuffle_quality"]
