"""Layers: from the loader's batches to what a network computes with.

Written in `keras.ops`, so that they run on every Keras backend; embeddings over a Schema, a list of
`Column`, or `tf.feature_column` objects. Does not belong here: whole networks (`models.py`).
"""

from tutorlib.layers.buckets import bucket_length, bucketed
from tutorlib.layers.crosses import CIN, Cross, FactorizationMachine
from tutorlib.layers.dense import MLP, NumberEmbedding
from tutorlib.layers.features import DenseFeatures, LinearFeatures, ScalarDenseFeatures
from tutorlib.layers.fused import FusedEmbedding
from tutorlib.layers.inputs import keras_inputs
from tutorlib.layers.interactions import INTERACTION_TYPES, DotProductInteraction
from tutorlib.layers.tables import COMBINERS, EmbeddingBag, EmbeddingTable

__all__ = [
    "CIN",
    "COMBINERS",
    "INTERACTION_TYPES",
    "MLP",
    "Cross",
    "DenseFeatures",
    "DotProductInteraction",
    "EmbeddingBag",
    "EmbeddingTable",
    "FactorizationMachine",
    "FusedEmbedding",
    "LinearFeatures",
    "NumberEmbedding",
    "ScalarDenseFeatures",
    "bucket_length",
    "bucketed",
    "keras_inputs",
]
