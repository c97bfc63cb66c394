"""Keras bridge: everything that depends on how Keras works inside, and nothing else.

`adapter` lets `fit`, `evaluate` and `predict` take a loader, and refuses what they would ignore
with it; `batch_types` tells TensorFlow the type of a batch; `backend` has what each backend does in
its own way: tensors, integers, and the processes that `keras.distribution` has joined.
"""
