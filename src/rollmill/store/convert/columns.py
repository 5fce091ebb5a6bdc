"""Which column of a store plays which part in a format that knows fewer."""

from __future__ import annotations

from rollmill.core.errors import StoreError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array
from rollmill.core.slots import OBS
from rollmill.store.format.schema import Column, StoreSchema


def observation_columns(schema: StoreSchema) -> list[Column]:
    """Return the columns that were observations (``per="obs"`` alone may also be, say, values)."""
    return [column for column in schema.columns if column.name.startswith(OBS)]


def field_name(column: Column) -> str:
    return column.name.removeprefix(OBS)


def one_observation(schema: StoreSchema, wanted: str | None) -> Column:
    """Choose the observation for a format that has but one: the wanted one, or the only one beside the action mask."""
    columns = {field_name(column): column for column in observation_columns(schema)}
    names = ", ".join(columns)
    if wanted is not None:
        if wanted not in columns:
            raise StoreError(f"there is no observation {wanted!r} in this store (it has: {names})")
        return columns[wanted]
    choices = [column for name, column in columns.items() if name != MASK_FIELD]
    if len(choices) != 1:
        raise StoreError(f"this format has one observation, the store has {names}: choose one with --obs NAME")
    return choices[0]


def image_column(schema: StoreSchema, wanted: str | None) -> Column:
    """Choose the observation to show as an image: uint8, ``[height, width, channels]``, grey or RGB."""
    images = [c for c in observation_columns(schema) if is_image(c)]
    if wanted is not None:
        column = one_observation(schema, wanted)
        if not is_image(column):
            shape = "x".join(map(str, column.shape))
            raise StoreError(f"observation {wanted} ({column.dtype} {shape}) is no image: uint8 with 1 or 3 channels")
        return column
    if len(images) != 1:
        names = ", ".join(field_name(c) for c in images) or "none"
        raise StoreError(f"images among the observations: {names}; one is needed, choose it with --obs NAME")
    return images[0]


def is_image(column: Column) -> bool:
    shape = column.shape
    return column.dtype == "uint8" and (
        len(shape) == 2 or (len(shape) == 3 and (shape[-1] in (1, 3) or shape[0] in (1, 3)))
    )


def as_image(rows: Array) -> Array:
    """Return the rows of an image column as ``[n, height, width, 1 or 3]``."""
    if rows.ndim == 3:
        return rows[..., None]
    if rows.shape[-1] in (1, 3):
        return rows
    return rows.transpose(0, 2, 3, 1)


def env_actions(spec: ActionSpec, actions: Array) -> Array:
    """Turn stored actions into what the environment got: choices from ``start`` on, vectors within their bounds."""
    import numpy as np

    if spec.kind == "continuous":
        return np.clip(actions, np.array(spec.low, actions.dtype), np.array(spec.high, actions.dtype))
    if spec.kind == "discrete":
        shifted: Array = actions + (spec.start[0] if spec.start else 0)
        return shifted
    if spec.kind == "mixed":  # choices from their start, then numbers within their bounds
        low, high = [*spec.start, *spec.low], [n + s - 1 for n, s in zip(spec.nvec, spec.start)] + [*spec.high]
        shift = np.array([*spec.start, *(0 for _ in spec.low)], actions.dtype)
        within: Array = np.clip(actions + shift, np.array(low, actions.dtype), np.array(high, actions.dtype))
        return within
    offset: Array = actions + np.array(spec.start or [0] * len(spec.nvec))
    return offset
