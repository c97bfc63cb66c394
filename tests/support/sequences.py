"""A recurrent network over padded lists, on any backend: nothing may depend on the padding."""

import keras
import numpy as np

from tutorlib import MultiHot
from tutorlib.loader import KerasSequenceLoader

PADDED = {  # the same lists behind which other numbers of zeros stand
    "longest": MultiHot("padded"),
    "40 wide": MultiHot("padded", max_length=40),
    "70 wide": MultiHot("padded", max_length=70),
}


def states_of_lists(folder, schema, jit_compile):
    """Return ({form: last states of a GRU over each list of h}, those over single lists)."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), name="h", dtype="int32")
    vectors = keras.layers.Embedding(60, 4, "normal", mask_zero=True)(ids)
    model = keras.Model({"h": ids}, keras.layers.GRU(5)(vectors))
    model.compile(jit_compile=jit_compile)
    states = {}
    for form, multi_hot in PADDED.items():
        options = {"schema": schema, "shuffle": False, "multi_hot": multi_hot}
        loader = KerasSequenceLoader(folder, 500, **options)
        states[form] = model.predict(loader, verbose=0)
    alone = []
    for inputs, _ in KerasSequenceLoader(folder, 30, schema=schema, shuffle=False).as_numpy():
        for values in np.split(inputs["h__values"][:, 0], np.cumsum(inputs["h__nnzs"])[:-1]):
            state = keras.ops.convert_to_numpy(model({"h": values[None]}))[0] if len(values) else 0
            alone.append(np.broadcast_to(state, 5))
        break
    return states, np.stack(alone)
