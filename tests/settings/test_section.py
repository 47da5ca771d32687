"""What every section of the settings has in common: what its keys take, and say of what they do not take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

import pytest
from pydantic import BaseModel, ValidationError

from mcproxy.settings import Settings


def _types(annotation: object) -> Iterator[object]:
    yield annotation
    for inner in get_args(annotation):
        yield from _types(inner)


def _sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield section
    for field in section.model_fields.values():
        for inner in _types(field.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _sections(inner)


def _takes_numbers(annotation: object) -> bool:
    types = set(_types(annotation))
    return bool(types & {int, float}) and bool not in types


_NUMERIC: Final = {
    f"{section.__name__}.{key}": (section, key)
    for section in _sections(Settings)
    for key, field in section.model_fields.items()
    if _takes_numbers(field.annotation)
}


@pytest.mark.parametrize(("section", "key"), _NUMERIC.values(), ids=_NUMERIC)
def test_true_is_no_number_in_any_setting(section: type[BaseModel], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        section.model_validate({key: True})
    assert "should be a " in next(error["msg"] for error in caught.value.errors() if error["loc"][0] == key)


def test_no_type_of_a_key_is_a_text_that_every_start_would_compile() -> None:
    types = {(section, key): type for section in _sections(Settings) for key, type in section.__annotations__.items()}
    assert types
    assert [key for key, type in types.items() if isinstance(type, str)] == []


_UNFIT: Final = "a line\nand another"


@pytest.mark.parametrize("value", [_UNFIT, [_UNFIT], {_UNFIT: _UNFIT}], ids=["text", "list", "mapping"])
def test_no_refusal_of_a_text_is_a_regular_expression(value: object) -> None:
    refusals = [said for section in set(_sections(Settings)) for said in _refusals(section, value)]
    assert refusals
    assert not [said for said in refusals if "pattern" in said]


def _refusals(section: type[BaseModel], value: object) -> Iterator[str]:
    for key in section.model_fields:
        try:
            section.model_validate({key: value})
        except ValidationError as error:
            yield from (f"{section.__name__}.{key}: {each['msg']}" for each in error.errors())
