"""export_serving: a process with TensorFlow alone predicts what workflow and model do."""

import subprocess
import sys

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tests.support.ops_served import (
    as_batch,
    assert_same_bits,
    in_batch_dtypes,
    raw_tensors,
    rows_of_all_kinds,
    workflow_of_all_kinds,
)
from tutorlib.columns import Chunk
from tutorlib.layers import keras_inputs
from tutorlib.loader import KerasSequenceLoader, MultiHot
from tutorlib.models import DLRM, movielens_network
from tutorlib.ops import (
    Categorify,
    Clip,
    FillMedian,
    FillMissing,
    HashBucket,
    LogOp,
    Normalize,
)
from tutorlib.serving import export_serving
from tutorlib.workflow import Workflow

SERVICE = """
import sys
sys.modules["keras"] = sys.modules["tutorlib"] = None  # neither can be imported
import numpy as np, tensorflow as tf
path, request, answer = sys.argv[1:]
serve = tf.saved_model.load(path).signatures["serving_default"]
raw = {n: a.astype(bytes) if a.dtype.kind == "S" else a for n, a in np.load(request).items()}
out = serve(**{name: tf.constant(array) for name, array in raw.items()})
out = {name: tensor.numpy() for name, tensor in out.items()}
np.savez(answer, **{n: a.astype("S") if a.dtype == object else a for n, a in out.items()})
"""


def served_elsewhere(folder, path, raw):
    """Return what a process with nothing but TensorFlow makes of raw tensors."""
    arrays = {name: tensor.numpy() for name, tensor in raw.items()}
    arrays = {n: a.astype("S") if a.dtype == object else a for n, a in arrays.items()}
    np.savez(folder / "request.npz", **arrays)
    files = [str(folder / name) for name in ("request.npz", "answer.npz")]
    command = [sys.executable, "-I", "-c", SERVICE, str(path), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(np.load(files[1]))


CRITEO_NUMBERS, CRITEO_IDS = ["I1", "I2", "I3"], ["C1", "C2", "C3", "C4"]


def criteo(count, seed):
    generator = np.random.default_rng(seed)
    table = {"label": generator.integers(0, 2, count).astype(np.float32)}
    for name in CRITEO_NUMBERS:
        mask = generator.random(count) < 0.2
        table[name] = pa.array(generator.geometric(0.01, count) - 3, mask=mask)
    for place, name in enumerate(CRITEO_IDS):
        ids = generator.geometric(0.02, count) * 7_919 + place
        words = [f"{i:08x}" for i in ids]
        mask = generator.random(count) < 0.1
        table[name] = pa.array(words if place % 2 else ids, mask=mask)
    return pa.table(table)


def criteo_workflow():
    return Workflow(
        CRITEO_NUMBERS >> FillMissing(0) >> Clip(min_value=0) >> LogOp() >> Normalize(),
        CRITEO_IDS >> Categorify(freq_threshold=3),
        ["label"],
    )


TITLES = [f"Film {n} (19{n:02d}), 第{n}部" for n in range(1, 60)]
GENRES = [["War", "Art", "Film-Noir"][: n % 4] for n in range(59)]


def movielens(count, seed):
    generator = np.random.default_rng(seed)
    films = generator.geometric(0.05, count) % 59
    return pa.table(
        {
            "userId": generator.geometric(0.02, count),
            "movieId": films,
            "title": [TITLES[film] for film in films],
            "genres": pa.array([GENRES[film] for film in films], pa.list_(pa.string())),
            "rating": (generator.random(count) < 0.5).astype(np.float32),
        }
    )


def movielens_workflow():
    return Workflow(
        ["userId", "movieId", "genres"] >> Categorify(),
        ["title"] >> HashBucket(100),
        ["rating"],
        label_names=["rating"],
    )


LESSONS = {
    "criteo": (criteo, criteo_workflow),
    "movielens": (movielens, movielens_workflow),
}


@pytest.mark.parametrize("name", LESSONS)
def test_a_saved_graph_gives_bits_of_transform_and_predictions_of_the_model(tmp_path, name):
    """In a process that has TensorFlow alone, also of a workflow that was saved and loaded."""
    make_rows, make_workflow = LESSONS[name]
    table = make_rows(2_000, 0)
    workflow = Workflow.load(make_workflow().fit(table).save(tmp_path / "workflow"))
    schema, (label,) = workflow.output_schema, workflow.label_names
    model = movielens_network(schema, [16]) if name == "movielens" else DLRM(schema, 4, [8], [8])
    rows = Chunk.from_arrow(make_rows(300, 1))
    made = workflow.transform(rows)
    features = as_batch(made.select([name for name in made if name != label]))
    tensors = {n: tf.constant(a) for n, a in features.items()}
    inputs = {n: keras.Input(a.shape[1:], name=n, dtype=a.dtype.name) for n, a in features.items()}
    bits = {n: keras.layers.Identity(dtype=x.dtype)(x) for n, x in inputs.items()}
    whole = keras.Model(inputs, bits | {"predictions": model(inputs)})
    nullable = [name for name in workflow.input_names if name in table.column_names]
    nullable = [name for name in nullable if table[name].null_count]
    path = export_serving(whole, workflow, tmp_path / "model", nullable=nullable)
    raw = raw_tensors(workflow.to_keras(), rows, nullable)
    got = served_elsewhere(tmp_path, path, raw)
    want = model(tensors, training=False).numpy()
    assert want.std() > 0
    np.testing.assert_allclose(got.pop("predictions"), want, rtol=1e-5)
    assert_same_bits(got, features)


def test_a_recurrent_network_over_padded_lists_is_served_as_it_was_trained(tmp_path):
    words = [["c", "a", "b"], [], ["a"], ["b", "new", "b", "a"], ["a", "b", "c"]]
    table = pa.table({"words": words * 5, "label": np.arange(25) % 2})
    workflow = Workflow(["words"] >> HashBucket(9, first_id=1), ["label"], label_names=["label"])
    options = {"shuffle": False, "multi_hot": MultiHot("padded", max_length=12)}
    loader = KerasSequenceLoader(table, 10, **options).map(workflow.fit(table))
    inputs = keras_inputs(loader.schema, multi_hot="padded")
    vectors = keras.layers.Embedding(10, 4, "normal", mask_zero=True)(inputs["words"])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GRU(5)(vectors)))
    model.compile("adam", "mse")
    model.fit(loader, verbose=0)
    path = export_serving(model, workflow, tmp_path / "model", multi_hot="padded")
    want = loader.predict(model)["prediction"].to_numpy()[:5]
    assert len(np.unique(want.round(5))) == 5  # also where the order of a list differs
    serve = tf.saved_model.load(path).signatures["serving_default"]
    for rows in ([0, 1, 2, 3, 4], [1], [1, 2]):
        values = tf.constant([word for row in rows for word in words[row]], tf.string)
        nnzs = tf.constant([len(words[row]) for row in rows])
        got = serve(words__values=values, words__nnzs=nnzs)["predictions"]
        np.testing.assert_allclose(np.ravel(got), want[rows], rtol=1e-4, atol=1e-6)


def test_an_export_stands_whole_or_not_at_all(tmp_path):
    workflow = workflow_of_all_kinds(lists=False).fit(rows_of_all_kinds())
    model = DLRM(workflow.output_schema, 4, [8], [8])
    path = export_serving(model, workflow, tmp_path / "model")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_serving(model, workflow, path)
    before = sorted(p.name for p in path.rglob("*"))
    stacked = DLRM(workflow.output_schema, 4, [8], [8], batch_layout="stacked")
    with pytest.raises(ValueError, match=r"the model takes \['categorical', 'continuous'\], which"):
        export_serving(stacked, workflow, path, overwrite=True)
    assert sorted(p.name for p in path.rglob("*")) == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    export_serving(model, workflow, path, overwrite=True)
    assert (path / "saved_model.pb").exists()


def test_a_model_of_some_columns_asks_for_theirs_alone(tmp_path):
    workflow = workflow_of_all_kinds().fit(rows_of_all_kinds())
    model = movielens_network(workflow.output_schema.select(["user", "tags"]), [8])
    path = export_serving(model, workflow, tmp_path / "model")
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    raw = {"user", "tags__values", "tags__nnzs"}
    assert set(signature.structured_input_signature[1]) == raw
    export_serving(model, workflow, path, nullable=["tags"], overwrite=True)
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == raw | {"tags__valid"}


def test_a_null_where_training_had_none_is_served_as_it_is_transformed(tmp_path):
    """Whatever number or text stands in its place."""
    keras.utils.set_random_seed(0)
    days = pa.array(range(200), pa.date32())
    columns = {"age": pa.array(range(200)), "city": ["a", "b", "c", "d"] * 50, "day": days}
    columns |= {"tags": [["x", "y"], ["z"], [], ["x"]] * 50, "plain": pa.array(range(200))}
    rows = pa.table(columns | {"x": np.arange(200.0), "open": [True, False] * 100})
    workflow = Workflow(
        ["age"] >> FillMedian() >> Normalize(),
        ["city", "day", "tags"] >> Categorify(),
        ["open"] >> HashBucket(9),
        ["plain"] >> LogOp(),  # a null comes out as NaN, which no model takes
        ["x"] >> FillMissing(7.0),
    ).fit(rows)
    layer, nullable = workflow.to_keras(), ["age", "city", "day", "tags", "open"]
    model = movielens_network(workflow.output_schema, [8])
    path = export_serving(model, workflow, tmp_path / "model", nullable=nullable)
    holes = {"age": [None, 5], "city": ["d", None], "day": pa.array([None, 3], pa.date32())}
    holes |= {"tags": [[None, "x"], []], "open": pa.array([None, None], pa.bool_())}
    table = pa.table(holes | {"plain": [1, 2], "x": [None, 3.0]}, schema=rows.schema)
    raw = raw_tensors(layer, Chunk.from_arrow(table), nullable)
    assert layer(raw).keys() == as_batch(workflow.transform(table)).keys()
    assert_same_bits(layer(raw), in_batch_dtypes(as_batch(workflow.transform(table)), layer.schema))
    for name in nullable:
        values = raw.get(name, raw.get(f"{name}__values"))
        key = name if name in raw else f"{name}__values"
        other = (
            tf.constant(b"a", tf.string) if values.dtype == tf.string else tf.cast(1, values.dtype)
        )
        raw[key] = tf.where(raw[f"{name}__valid"], values, other)
    serve = tf.saved_model.load(path).signatures["serving_default"]
    want = KerasSequenceLoader(table, 2, shuffle=False).map(workflow).predict(model, verbose=0)
    got = serve(**raw)["predictions"].numpy()[:, 0]
    np.testing.assert_allclose(got, want["prediction"].to_numpy(), rtol=1e-5)


def test_a_null_that_no_op_fills_is_refused_whatever_the_network_makes_of_it(tmp_path):
    """A ReLU on a CPU makes 0 of NaN, which looks like a prediction."""
    rows = Chunk({"x": np.arange(4.0), "filled": np.arange(4.0)})
    workflow = Workflow(["x"] >> Normalize(), ["filled"] >> FillMedian() >> Normalize()).fit(rows)
    model = movielens_network(workflow.output_schema, [8])
    path = export_serving(model, workflow, tmp_path / "model")
    serve = tf.saved_model.load(path).signatures["serving_default"]
    whole, hole = tf.constant([1.0, 2.0], tf.float64), tf.constant([1.0, np.nan], tf.float64)
    assert np.isfinite(serve(x=whole, filled=hole)["predictions"]).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match="column x comes out with a null"):
        serve(x=hole, filled=whole)


class TenBest(keras.Model):
    """Films by title, best first; of ids, genres and titles, so nothing is known of dtypes."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def call(self, features):
        liked = self.network({name: features[name] for name in self.network.input})[:, 0]
        best = tf.math.top_k(liked, k=tf.minimum(10, tf.size(liked)))
        title = tf.gather(features["title"][:, 0], best.indices)
        return {"title": title, "liked": best.values}


def test_a_model_that_takes_texts_too_and_answers_titles_is_served(tmp_path):
    rated = movielens(2_000, 0)
    ids = ["userId", "movieId", "genres"]
    workflow = Workflow(ids >> Categorify(), ["title"]).fit(rated)
    network = movielens_network(workflow.output_schema.select(ids), [16])
    path = export_serving(TenBest(network), workflow, tmp_path / "model")
    rows = Chunk.from_arrow(rated.slice(0, 69))
    serve = tf.saved_model.load(path).signatures["serving_default"]
    got = serve(**raw_tensors(workflow.to_keras(), rows, []))
    batch = as_batch(workflow.transform(rows).select(ids))
    liked = network({n: tf.constant(a) for n, a in batch.items()}, training=False).numpy()[:, 0]
    best = np.argsort(-liked, kind="stable")[:10]
    titles = rows["title"].tolist()
    assert [text.decode() for text in got["title"].numpy()] == [titles[place] for place in best]
    np.testing.assert_allclose(got["liked"], liked[best], rtol=1e-5)


def model_and_workflow_of(name, values):
    workflow = Workflow([name] >> Clip(0, 9)).fit(Chunk({name: values}))
    x = keras.Input((1,), name="x")
    return keras.Model({name: x}, keras.layers.Dense(1)(x)), workflow


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize(
    "name",
    ["é", "a b", "9x", "self", ""],
)
def test_a_column_whose_name_no_signature_can_have_is_refused_by_name(tmp_path, name):
    model, workflow = model_and_workflow_of(name, np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="cannot be arguments of a signature") as caught:
        export_serving(model, workflow, tmp_path / "served")
    assert repr(name) in str(caught.value)
    assert not (tmp_path / "served").exists()


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize("name", ["a__b", "inputs", "training"])
def test_a_signature_takes_a_column_by_its_name(tmp_path, name):
    model, workflow = model_and_workflow_of(name, np.array([1.0, 2.0]))
    path = export_serving(model, workflow, tmp_path / "served")
    signature = tf.saved_model.load(path).signatures["serving_default"]
    assert list(signature.structured_input_signature[1]) == [name]
    out = signature(**{name: tf.constant([1.0, 2.0], tf.float64)})["predictions"]
    np.testing.assert_allclose(out, model.predict({name: np.array([[1.0], [2.0]])}, verbose=0))
