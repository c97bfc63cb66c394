"""Layers: from the loader's batches to the tensors a network computes with.

They are written in `keras.ops`, so they run on every Keras backend. Layers over columns take a
Schema, a list of `Column`, or `tf.feature_column` objects.
"""

from tutorlib.layers.dense import MLP, NumberEmbedding
from tutorlib.layers.features import DenseFeatures, LinearFeatures, ScalarDenseFeatures
from tutorlib.layers.fused import FusedEmbedding
from tutorlib.layers.inputs import bucketed, keras_inputs
from tutorlib.layers.interactions import Cross, DotProductInteraction, FactorizationMachine
from tutorlib.layers.table_plan import PlannedTable, TablePlan, pad_tables, plan_tables
from tutorlib.layers.tables import EmbeddingBag, EmbeddingTable

__all__ = [
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
    "PlannedTable",
    "ScalarDenseFeatures",
    "TablePlan",
    "bucketed",
    "keras_inputs",
    "pad_tables",
    "plan_tables",
]
