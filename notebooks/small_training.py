"""The training that lesson 08 kills: the same program starts it and resumes it.

python small_training.py FILE CHECKPOINTS EPOCHS EVERY [KILL_AT]
"""

import os
import signal
import sys

import keras
import tensorflow as tf
from keras import layers

from small_loader import SmallLoader
from tutorlib.callbacks import LoaderCheckpoint


def make(path):
    """Return a loader of the file and a compiled model, the same in each process."""
    keras.utils.set_random_seed(1)  # the same weights and Dropout
    tf.config.experimental.enable_op_determinism()  # sums in the same order in each run
    ad, x = keras.Input((1,), name="ad", dtype="int64"), keras.Input((1,), name="x")
    vector = layers.Flatten()(layers.Embedding(1_000, 8)(ad))
    hidden = layers.Dense(16, "relu")(layers.Concatenate()([vector, x]))
    click = layers.Dense(1, "sigmoid")(layers.Dropout(0.2)(hidden))
    model = keras.Model({"ad": ad, "x": x}, click)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    return SmallLoader([path], 2_048, parts=4, columns=["ad", "x", "label"]), model


def train(path, checkpoints, epochs, every, kill_at=0):
    """Start or resume a training; return its model and the step at which it began here."""
    loader, model = make(path)
    checkpoint = LoaderCheckpoint(checkpoints, loader, every_n_batches=every)
    first_epoch = checkpoint.restore(model)  # the checkpoint, if there is one
    first_step = int(model.optimizer.iterations)

    def kill(batch, logs):
        if model.optimizer.iterations == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)  # as kill -9 does: no `finally`, no callback

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=kill), checkpoint]
    for epoch in range(first_epoch, epochs):
        model.fit(loader, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=callbacks)
    return model, first_step


if __name__ == "__main__":
    train(*sys.argv[1:3], *map(int, sys.argv[3:]))
