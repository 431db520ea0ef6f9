"""Several datasets as one, the fields of each sample side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torch.utils.data import default_collate

from edcache.base import Ints, OptionError
from edcache.dataset.concatenation import Combined, collated_of, columns_of, keys_of, likeness_of, samples_of
from edcache.dataset.indexing import not_as_stored
from edcache.dataset.view import Samples
from edcache.format import beside
from edcache.labels import checked_indices
from edcache.reader import FieldPath, Memory, Projection, Special

# A dataset, and which of the fields asked for are its own; None for all.
_Side = tuple[Samples, Projection | None]


def zip_fields(*datasets: Samples) -> Zipped:
    """Join the fields of several datasets: sample i has the fields of sample i of each; no sample is read.

    Args:
        datasets: two or more datasets of the same length, whose samples are dicts.
    Raises:
        OptionError: "zip_fields(): the datasets have 10 and 12 samples; ..."; their `batch_transform`s
            differ; two of them have the same field (here, or at the first read).

    `labels` has the columns of all datasets. If two have a column of the same name, that of the first is
    used. Each dataset keeps its transforms.

    >>> images_and_features = edcache.zip_fields(images, features.select("embedding"))
    """
    return Zipped(datasets)


class Zipped(Combined):
    """The fields of several datasets of one length side by side; `zip_fields` makes it."""

    called = "zip_fields"

    def __init__(self, parts: Sequence[Samples]) -> None:
        super().__init__(parts)
        if len(set(map(len, parts))) > 1:
            raise OptionError(
                f"zip_fields(): the datasets have {' and '.join(f'{len(part):,}' for part in parts)} samples;"
                " take the same ones of each"
            )
        self._length = len(parts[0])
        self._stored_keys = [keys_of(part) for part in parts]
        self._check_once([key for keys in self._keys_of_parts for key in keys or ()])

    def __len__(self) -> int:
        return self._length

    @property
    def _keys_of_parts(self) -> list[tuple[Any, ...] | None]:
        """As far as they are known: a part may have been given a transform since."""
        sides = zip(self._parts, self._stored_keys, strict=True)
        return [keys if part._transform is None else None for part, keys in sides]

    def _many(self, indices: Ints, fields: Projection | None) -> list[Any]:
        sides = self._sides(fields)
        if sides is None:
            assert fields is not None
            return [fields.of_sample(sample) for sample in self._many(indices, None)]
        indices = checked_indices(indices, len(self))
        columns = [samples_of(part, indices, inner) for part, inner in sides]
        return [self._joined(sides, list(parts), fields) for parts in zip(*columns, strict=True)]

    def _collated(
        self, indices: Ints, fields: Projection | None, special: Special | None, memory: Memory
    ) -> Any:
        sides = self._sides(fields)
        if sides is None or special is not None:
            return NotImplemented
        indices = checked_indices(indices, len(self))
        try:
            batches = [collated_of(part, indices, inner, None, memory) for part, inner in sides]
            if all(batch is NotImplemented for batch in batches):
                return NotImplemented
            for place, (part, inner) in enumerate(sides):
                if batches[place] is NotImplemented:
                    batches[place] = default_collate(samples_of(part, indices, inner))
            return self._joined(sides, batches, fields, is_batch=True)
        except Exception:  # noqa: BLE001 - sample by sample it is raised as default_collate does
            return NotImplemented

    def _likeness(self, indices: Ints, fields: Projection | None) -> object:
        sides = self._sides(fields)
        if sides is None:
            return None
        indices = checked_indices(indices, len(self))
        likeness = [likeness_of(part, indices, inner) for part, inner in sides]
        return None if None in likeness else (likeness, fields and (fields.paths, fields.as_tuple))

    def _columns(self) -> Mapping[FieldPath, str]:
        columns: dict[FieldPath, str] = {}
        named: set[str] = set()
        for place, part in enumerate(self._parts):
            own = columns_of(part).items()
            columns |= {p: name for p, name in own if name not in named and self._owner(p) == place}
            named.update(part.labels)
        return columns

    def _keys(self) -> tuple[Any, ...] | None:
        known = [keys for keys in self._keys_of_parts if keys is not None]
        return tuple(key for keys in known for key in keys) if len(known) == len(self._parts) else None

    def _stored(self, indices: Ints, places: Ints) -> NoReturn:
        raise not_as_stored(self, "their fields come from several datasets")

    def _label_table(self) -> Any:
        return beside(self._tables([len(self)] * len(self._parts)))

    def _sides(self, fields: Projection | None) -> list[_Side] | None:
        """Each dataset with its fields; None where it takes the samples to know whose field is whose."""
        if fields is None:
            return [(part, None) for part in self._parts]
        paths: dict[int, list[FieldPath]] = {}
        for path in fields.paths:
            owner = self._owner(path)
            if owner is None:
                return None
            paths.setdefault(owner, []).append(path)
        return [
            (self._parts[place], Projection(tuple(paths[place]), fields.as_tuple, {}))
            for place in sorted(paths)
        ]

    def _owner(self, path: FieldPath) -> int | None:
        """The place of the dataset that has a field; None where that is not known."""
        all_keys = self._keys_of_parts
        if None in all_keys:
            return None
        keys = [path[0]] if isinstance(path, tuple) else [path]
        if isinstance(path, str):  # a key as it stands, or else keys between dots
            keys.append(path.split(".")[0])
        owners = (place for key in keys for place, own in enumerate(all_keys) if key in (own or ()))
        return next(owners, None)

    def _joined(
        self, sides: list[_Side], parts: list[Any], fields: Projection | None, is_batch: bool = False
    ) -> Any:
        """A sample, or a batch, of those of the sides."""
        if fields is not None:
            by_path: dict[FieldPath, Any] = {}
            for (_, own), part in zip(sides, parts, strict=True):
                assert own is not None
                by_path |= zip(own.paths, part if fields.as_tuple else part.values(), strict=True)
            values = [by_path[path] for path in fields.paths]
            # default_collate makes a list of tuples' columns.
            return values if is_batch and fields.as_tuple else fields.assembled(values)
        for part, dataset in zip(parts, self._parts, strict=True):
            if not isinstance(part, Mapping):
                raise OptionError(
                    f"zip_fields() merges dicts; the samples of {dataset!r} are of type "
                    f'{type(part).__name__}; use select("image", ...), whose samples are dicts'
                )
        self._check_once([key for part in parts for key in part])
        return {key: value for part in parts for key, value in part.items()}

    def _check_once(self, keys: list[Any]) -> None:
        if len(set(keys)) < len(keys):
            twice = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise OptionError(
                f"zip_fields(): the field {twice!r} is in more than one dataset; take it from one, with "
                "select() on the others"
            )
