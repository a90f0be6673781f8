"""Fields of the settings by their path, such as `models[0].variants.fast`, and what may be wrong with one."""

import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from router.config import RouterConfig

FieldPath = tuple[str | int, ...]
FieldType = object
"""A type annotation: a class or one of typing's forms."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: in which file or variable, on which line, at which field."""

    source: str
    line: int | None
    path: FieldPath
    message: str

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return ": ".join(part for part in (place, show(self.path), self.message) if part)


def show(path: FieldPath) -> str:
    """`models[0].variants.fast`; names that would not read well so stand in brackets and quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part)}]"
    return text


def child(of: FieldType, part: str | int) -> FieldType | None:
    """The type of a field, a mapping's value or a list's item; None where there is none of that name."""
    for form in _forms(of):
        if isinstance(part, int):
            if get_origin(form) is tuple:
                item: FieldType = get_args(form)[0]
                return item
        elif get_origin(form) is dict:
            value: FieldType = get_args(form)[1]
            return value
        elif isinstance(form, type) and issubclass(form, BaseModel) and part in form.model_fields:
            return form.model_fields[part].annotation
    return None


def type_at(path: FieldPath) -> FieldType | None:
    """The type of the field at `path`; None where the settings have no such field."""
    found: FieldType | None = RouterConfig
    for part in path:
        if found is None:
            return None
        found = child(found, part)
    return found


def names_in(of: FieldType) -> list[str]:
    """The fields of a group of settings; none for anything else."""
    return [
        name
        for form in _forms(of)
        if isinstance(form, type) and issubclass(form, BaseModel)
        for name in form.model_fields
    ]


def is_list(of: FieldType) -> bool:
    return any(get_origin(form) is tuple for form in _forms(of))


def is_group(of: FieldType) -> bool:
    """Whether it holds other fields or items, and is no single value itself."""
    return any(
        get_origin(form) in (tuple, dict) or (isinstance(form, type) and issubclass(form, BaseModel))
        for form in _forms(of)
    )


def is_optional(of: FieldType) -> bool:
    return type(None) in _forms(of)


def is_text(of: FieldType) -> bool:
    """Whether every value that it may have, but for none, is a string."""
    return all(
        form in (str, type(None)) or (get_origin(form) is Literal and all(isinstance(v, str) for v in get_args(form)))
        for form in _forms(of)
    )


def _forms(of: FieldType) -> Iterator[FieldType]:
    """The members of a union, without the notes that `Annotated` adds."""
    if get_origin(of) is Annotated:
        yield from _forms(get_args(of)[0])
    elif get_origin(of) in (Union, types.UnionType):
        for member in get_args(of):
            yield from _forms(member)
    else:
        yield of
