"""Layers: from the loader's batches to the tensors a network computes with.

They are written in `keras.ops`, so they run on every Keras backend. Layers over columns take a
Schema or a list of `Column`.
"""

from tutorlib.layers.features import (
    DenseFeatures,
    FusedEmbedding,
    LinearFeatures,
    ScalarDenseFeatures,
    keras_inputs,
)
from tutorlib.layers.interactions import MLP, DotProductInteraction
from tutorlib.layers.tables import EmbeddingBag, EmbeddingTable

__all__ = [
    "MLP",
    "DenseFeatures",
    "DotProductInteraction",
    "EmbeddingBag",
    "EmbeddingTable",
    "FusedEmbedding",
    "LinearFeatures",
    "ScalarDenseFeatures",
    "keras_inputs",
]
