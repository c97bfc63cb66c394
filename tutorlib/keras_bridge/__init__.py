"""Keras bridge: everything that depends on how Keras works inside, and nothing else.

`adapter` lets `fit`, `evaluate` and `predict` take a loader, and refuses what they would ignore
with it; `batch_types` tells TensorFlow the type of a batch; `backend` makes tensors; `ranks` knows
what `keras.distribution` has joined, and refuses loaders that do not belong together.
"""
