"""Split tables: which embedding tables are split over devices, and the bytes each device needs.

Keras distributes the variables of a model by a `LayoutMap`, on its JAX backend. A plan makes one by
the sizes of the tables, before any of them exists.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tutorlib.checks import check_bytes, check_integer
from tutorlib.display import shortened
from tutorlib.layers.features import as_schema
from tutorlib.schema import Schema

MEBIBYTE = 2**20
# How the names of this library's tables and those of keras.layers.Embedding end. A plan knows the
# variables of a model only by name: it is made before they exist.
TABLE_NAMES = ("embedding_weights", "embeddings")


@dataclasses.dataclass(frozen=True)
class PlannedTable:
    """A table of a plan; its bytes count the table alone, without optimizer slots.

    Args:
        path: of its variable.
        rows: of the whole table.
        width: of a row.
        nbytes: of the whole table.
        shares: devices that each hold one of this many equal shares of the rows; 1 if every device
            holds the whole table.
    """

    path: str
    rows: int
    width: int
    nbytes: int
    shares: int

    @property
    def split(self) -> bool:
        """Whether the rows are split over the devices."""
        return self.shares > 1


@dataclasses.dataclass(frozen=True, repr=False)
class TablePlan:
    """What `plan_tables` returns: where the tables of a model lie, and what that needs.

    Args:
        tables: all tables, in the order of the model's variables.
        bytes_per_device: bytes that training keeps on each device. "tables"; "slots", the
            optimizer's state of the tables; "gradients" of all variables, which are dense on JAX;
            and "rest", all other variables with their slots. Activations and the batch come on top.
        limit: bytes that a device may need; None for no limit.
        split_above: bytes of a table from which on it is split.
        device_mesh: the `keras.distribution.DeviceMesh`.
    """

    tables: tuple[PlannedTable, ...]
    bytes_per_device: dict[str, int]
    limit: int | None
    split_above: int
    device_mesh: Any

    @property
    def layout_map(self) -> Any:
        """The `keras.distribution.LayoutMap` of the split tables; optimizer slots follow them."""
        layouts = keras.distribution.LayoutMap(self.device_mesh)
        for table in self.tables:
            if table.split:
                layouts[table.path] = _row_layout(self.device_mesh)
        return layouts

    def distribution(self, **kwargs: Any) -> Any:
        """Return a `keras.distribution.ModelParallel` that lays out the tables as planned.

        Under it, creating a table that the plan does not split although it is large raises
        ValueError, instead of filling every device.

        Args:
            **kwargs: arguments of `ModelParallel`, such as `auto_shard_dataset`. The batch is split
                over the mesh's first axis unless `batch_dim_name` names another.
        """
        plan = self

        class Planned(keras.distribution.ModelParallel):
            def get_variable_layout(self, variable: Any) -> Any:
                plan._check_planned(variable)
                return super().get_variable_layout(variable)

        return Planned(layout_map=self.layout_map, **kwargs)

    def _check_planned(self, variable: Any) -> None:
        """Raise ValueError for a large table that is not in the plan."""
        large = [table.path for table in self.tables if table.nbytes >= self.split_above]
        nbytes = _nbytes(variable)
        if is_table(variable) and nbytes >= self.split_above and variable.path not in large:
            raise ValueError(
                f"table {variable.path!r} of {_mebibytes(nbytes)} is not among the large tables "
                f"of the plan: {shortened(large)}. Give its layer and model a `name`, so that the "
                "path does not change, and make the plan of this model."
            )

    def check(self, model: keras.Model) -> dict[str, int]:
        """Return the bytes that the variables of a model and its optimizer take on each device.

        Args:
            model: built under `distribution()`; its optimizer counts once it is built.

        Returns:
            {device: bytes}, for the devices of this process.

        Raises:
            ValueError: if a device holds more than planned.
        """
        optimizer = getattr(model, "optimizer", None)
        variables = [*model.variables, *(optimizer.variables if optimizer else [])]
        found: dict[str, int] = {}
        for variable in variables:
            for shard in variable.value.addressable_shards:
                device = f"{shard.device.platform}:{shard.device.id}"
                found[device] = found.get(device, 0) + shard.data.nbytes
        needs = self.bytes_per_device
        planned = sum(needs.values()) - needs["gradients"]
        device, most = max(found.items(), key=lambda item: item[1])
        if most > planned + 4096 * len(variables):  # a plan leaves out single numbers
            raise ValueError(
                f"device {device} holds {_mebibytes(most)}, but {_mebibytes(planned)} are planned: "
                "call keras.distribution.set_distribution(plan.distribution()) before you build "
                "the model, and compile it with the optimizer of the plan"
            )
        return found

    def __repr__(self) -> str:
        total = sum(self.bytes_per_device.values())
        limit = "" if self.limit is None else f" of {_mebibytes(self.limit)}"
        parts = (f"{name} {_mebibytes(n)}" for name, n in self.bytes_per_device.items())
        shape = " x ".join(map(str, self.device_mesh.shape))
        count = self.device_mesh.devices.size
        lines = [
            f"{count} devices ({shape}), on each {_mebibytes(total)}{limit}: {', '.join(parts)}"
        ]
        for table in sorted(self.tables, key=lambda table: -table.nbytes):
            layout = f"{table.shares} shares of rows" if table.split else "whole on each device"
            lines.append(
                f"  {table.path}: {table.rows:,} x {table.width}, {_mebibytes(table.nbytes)}, "
                f"{layout}: {_mebibytes(table.nbytes // table.shares)}"
            )
        return "\n".join(lines)


def plan_tables(
    make_model: Callable[[], keras.Model],
    device_mesh: Any,
    optimizer: Any,
    *,
    bytes_per_device: int | str | None = None,
    split_above: int | str = "64MiB",
) -> TablePlan:
    """Return where the embedding tables of a model go on a mesh of devices: large ones are split.

    A table of at least `split_above` is split by rows over all devices of the mesh, in equal
    shares; the optimizer's slots follow. All other variables lie whole on every device, where they
    need no exchange. Nothing is built or allocated, and the devices of the mesh need not exist.

    The tables of `EmbeddingTable`, `EmbeddingBag`, `FusedEmbedding`, the layers and models that
    use them, and `keras.layers.Embedding` with its subclasses are found.

    Args:
        make_model: function without arguments that returns a built model. It is called once while
            JAX traces shapes, so it must create all of its layers itself.
        device_mesh: `keras.distribution.DeviceMesh`. On one axis, `DeviceMesh((n,), ("batch",))`,
            every device has a share of the batch and of the tables; a second axis is for other
            layouts of yours.
        optimizer: Keras optimizer, or its name, that the model will be trained with.
        bytes_per_device: bytes that a device may use, or text such as "16GiB"; None for no limit.
        split_above: bytes from which on a table is split, or such a text.

    Raises:
        RuntimeError: if Keras does not run on JAX, the only backend that splits variables.
        ValueError: if the model needs more than `bytes_per_device`, if the rows of a large table
            cannot be split in equal shares (see `pad_tables`), or if the model is not built.

    Example:
        >>> mesh = keras.distribution.DeviceMesh((4,), ("batch",))  # doctest: +SKIP
        >>> schema = pad_tables(schema, 4)  # doctest: +SKIP
        >>> plan = plan_tables(lambda: DLRM(schema, 16), mesh, "adam")  # doctest: +SKIP
        >>> keras.distribution.set_distribution(plan.distribution())  # doctest: +SKIP
        >>> model = DLRM(schema, 16)  # doctest: +SKIP
    """
    if keras.config.backend() != "jax":
        raise RuntimeError(
            f"plan_tables needs Keras on JAX, got {keras.config.backend()!r}, where Keras splits "
            "no variables. Set KERAS_BACKEND=jax before Keras is imported."
        )
    limit = check_bytes("bytes_per_device", bytes_per_device)
    threshold = check_bytes("split_above", split_above)
    if threshold is None:
        raise ValueError("split_above must be a number of bytes, got None")
    devices = device_mesh.devices.size
    tables: list[PlannedTable] = []
    indivisible: list[str] = []
    needs = dict.fromkeys(("tables", "slots", "gradients", "rest"), 0)

    def add(variable: Any, is_trained: bool, slots: list[Any]) -> None:
        nbytes, shares = _nbytes(variable), 1
        if is_table(variable):
            rows, width = variable.shape
            shares = devices if nbytes >= threshold else 1
            if rows % shares:
                following = _up(rows, shares)
                indivisible.append(f"{variable.path} has {rows:,}, next is {following:,}")
            tables.append(PlannedTable(variable.path, rows, width, nbytes, shares))
        needs["tables" if is_table(variable) else "rest"] += nbytes // shares
        needs["gradients"] += nbytes // shares if is_trained else 0
        for slot in slots:  # Keras lays out those of the variable's shape like the variable
            size = _nbytes(slot) // (shares if slot.shape == variable.shape else 1)
            needs["slots" if is_table(variable) else "rest"] += size

    _trace_variables(make_model, optimizer, add)
    if indivisible:
        raise ValueError(
            f"the rows of a table on {devices} devices must be a multiple of {devices}, because "
            f"JAX splits them only in equal shares: {shortened(indivisible)}. Make the model from "
            f"pad_tables(schema, {devices}), or give the layer the next size."
        )
    plan = TablePlan(tuple(tables), needs, limit, threshold, device_mesh)
    if limit is not None and sum(needs.values()) > limit:
        raise ValueError(
            f"the model does not fit {_mebibytes(limit)} per device. {plan!r}\nTake more devices, "
            "a lower split_above, a smaller embedding_dim, or an optimizer with fewer slots (SGD "
            "has none, Adagrad one, Adam two)."
        )
    return plan


def pad_tables(schema: Any, multiple: int) -> Schema:
    """Return the schema with every cardinality rounded up, so that tables split in equal shares.

    Make the model from it, and the loader from the schema as it is: no id reaches the added rows.
    A model for 8 devices also runs on 4, 2 and 1, and its checkpoints fit there.

    Args:
        schema: Schema, or list of `Column`.
        multiple: number of devices, or the largest that you may use, at least 1.

    Example:
        >>> from tutorlib import Column
        >>> pad_tables([Column("C1", "categorical", cardinality=9)], 8)["C1"].cardinality
        16
    """
    multiple = check_integer("multiple", multiple, at_least=1)
    return Schema(
        column
        if column.cardinality is None
        else dataclasses.replace(
            column, cardinality=_up(column.cardinality, multiple), embedding_dim=column.width
        )
        for column in as_schema(schema)
    )


def _trace_variables(
    make_model: Callable[[], keras.Model],
    optimizer: Any,
    visit: Callable[[Any, bool, list[Any]], None],
) -> None:
    """Call `visit` with each variable of a model, whether it is trained, and its optimizer slots.

    JAX only traces the model, so its values take no memory. A thread of its own keeps Keras's
    counters of names as they are, which belong to a thread.
    """
    import jax

    config = keras.optimizers.serialize(keras.optimizers.get(optimizer))
    policy, seeds = keras.config.dtype_policy(), random.getstate()

    def trace() -> int:
        model = make_model()
        if not model.built:
            raise ValueError(
                f"make_model returned model {model.name!r}, which is not built: call "
                "model.build(input_shape) in it, or make it from keras.Input"
            )
        trained = {id(variable) for variable in model.trainable_variables}
        for variable in model.variables:
            slots = []
            if id(variable) in trained:
                keeper = keras.optimizers.deserialize(copy.deepcopy(config))  # it takes out parts
                keeper.build([variable])
                slots = keeper.variables
            visit(variable, id(variable) in trained, slots)
        return 0

    def run() -> None:
        keras.config.set_dtype_policy(policy)
        jax.eval_shape(trace)

    try:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(run).result()
    finally:
        random.setstate(seeds)  # Keras seeds initializers from it


def is_table(variable: Any) -> bool:
    """Return whether a plan may split a variable, by its name and shape."""
    return variable.name.endswith(TABLE_NAMES) and len(variable.shape) == 2


def _row_layout(device_mesh: Any) -> Any:
    """Return the layout that splits rows over all axes of a mesh; Keras's takes one axis only."""
    import jax

    class RowLayout(keras.distribution.TensorLayout):
        @property
        def backend_layout(self) -> Any:
            axes = jax.sharding.PartitionSpec(tuple(device_mesh.axis_names), None)
            return jax.sharding.NamedSharding(device_mesh.backend_mesh, axes)

    return RowLayout((device_mesh.axis_names[-1], None), device_mesh)


def _nbytes(variable: Any) -> int:
    return math.prod(variable.shape) * np.dtype(variable.dtype).itemsize


def _up(size: int, multiple: int) -> int:
    """Return the next multiple, at least `size`."""
    return -(-size // multiple) * multiple


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / MEBIBYTE:,.1f} MiB"
