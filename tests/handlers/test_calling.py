"""The parameters of handlers, and the values that they may return."""

import enum
from types import ModuleType
from typing import Any
from uuid import uuid4

import orjson
import pytest
from pydantic import BaseModel, Field

from dagmaster.errors import HandlerFailed, Unavailable, UnfitData
from dagmaster.handlers import calling
from dagmaster.handlers.calling import ResolvedHandler, accept, to_json
from dagmaster.handlers.context import HandlerResult
from dagmaster.handlers.registry import Registration, handlers_in, register_handler


class Tile(BaseModel):
    size: int = Field(gt=0)
    token: str = ""


async def typed(ctx: Any, params: Tile) -> None: ...


async def untyped(ctx: Any) -> None: ...


async def loose(ctx: Any, params: dict[str, Any]) -> None: ...


def plain(ctx: Any) -> None: ...


@register_handler("marked.one", queue="container-tasks", memory_mb=100)
def marked(ctx: Any) -> None: ...


def plan_of(name: str, is_async: bool = True) -> ResolvedHandler:
    return calling.resolve(Registration(name, f"{__name__}:{name}", is_async=is_async))


@pytest.mark.requirement("H1")
def test_the_annotation_of_the_second_parameter_validates_params() -> None:
    assert plan_of("typed").parse({"size": 3}) == Tile(size=3)
    assert plan_of("untyped").parse({"x": 1}) == {"x": 1}
    assert plan_of("loose") == ResolvedHandler(loose, True, None)


@pytest.mark.requirement("E12")
def test_invalid_params_are_blamed_on_the_data_and_the_error_names_the_field_without_its_value() -> None:
    with pytest.raises(UnfitData) as caught:
        plan_of("typed").parse({"size": "s3cret-value", "token": "x"})

    assert caught.value.code == "params.invalid"
    assert "params.size" in caught.value.message
    assert "s3cret" not in caught.value.message


@pytest.mark.requirement("H1")
def test_a_handler_that_cannot_be_imported_is_blamed_on_the_environment() -> None:
    with pytest.raises(Unavailable, match="no_such_module") as caught:
        calling.resolve(Registration("x", "no_such_module:f"))
    assert caught.value.code == calling.UNLOADABLE


@pytest.mark.requirement("H1")
def test_a_handler_registered_as_the_wrong_kind_is_refused() -> None:
    with pytest.raises(HandlerFailed, match="registered as async"):
        plan_of("plain", is_async=True)


@pytest.mark.requirement("H1")
def test_marked_handlers_are_found_in_their_module() -> None:
    import sys

    assert Registration("marked.one", f"{__name__}:marked", False, "container-tasks", None, 100) in handlers_in(
        sys.modules[__name__]
    )


@pytest.mark.requirement("H1")
def test_a_package_can_list_its_handlers_without_importing_them() -> None:
    listing = ModuleType("their_package")
    listing.REGISTRATIONS = (Registration("theirs", "their_package.with_gdal:run", False),)  # type: ignore[attr-defined]

    assert [registration.name for registration in handlers_in(listing)] == ["theirs"]


class Colour(enum.StrEnum):
    RED = "red"


class Answer(BaseModel):
    tile: Tile
    values: tuple[float, ...] = ()


@pytest.mark.requirement("H1")
def test_outputs_are_converted_to_plain_json() -> None:
    returned = accept({"a": (1, 2.5), "m": Answer(tile=Tile(size=1), values=(1.0,)), "c": Colour.RED, "n": None})

    assert returned.output == {
        "a": [1, 2.5],
        "m": {"tile": {"size": 1, "token": ""}, "values": [1.0]},
        "c": "red",
        "n": None,
    }
    assert type(returned.output["c"]) is str
    assert orjson.loads(returned.encoded) == returned.output


@pytest.mark.requirement("H1")
def test_a_handler_result_contains_output_and_metrics_or_a_failure() -> None:
    assert accept(HandlerResult(output={"a": 1}, metrics={"pixels": 3})) == calling.HandlerOutput(
        {"a": 1}, {"pixels": 3}, b'{"a":1}'
    )
    with pytest.raises(HandlerFailed, match="sea level"):
        accept(HandlerResult(success=False, error_message="below sea level"))


DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]


@pytest.mark.requirement("H1")
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"a": [0, {"b": float("nan")}]}, "output.a[1].b is nan"),
        ([float("-inf")], "output[0] is -inf"),
        ({"m": Answer(tile=Tile(size=1), values=(float("inf"),))}, "output.m.values[0] is inf"),
        ({"a": object()}, "output.a is a object"),
        ({"a": uuid4()}, "output.a is a UUID"),
        ({"a": {1: 2}}, "output.a has the key 1"),
        ({"a": "x\x00y"}, "output.a contains a NUL"),
        ({"a\x00": 1}, "output contains a NUL"),
        ({"a": "\ud800"}, "output.a is not valid Unicode"),
        ({"a": 1 << 64}, "output.a is an integer of more than 64 bits"),
        (DEEP, "nested more than 200 levels"),
        ({"a": {1, 2}}, "output.a is a set"),
    ],
)
def test_outputs_that_jsonb_cannot_store_are_refused_with_the_path_of_the_value(output: Any, message: str) -> None:
    with pytest.raises(HandlerFailed) as caught:
        accept(output)
    assert message in caught.value.message
    assert caught.value.code == "handler.bad-output"


@pytest.mark.requirement("E18")
def test_the_error_for_an_output_above_the_limit_has_size_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "MAX_OUTPUT_BYTES", 1000)

    with pytest.raises(HandlerFailed, match=r"2,002 bytes, more than the 1,000 allowed") as caught:
        accept("x" * 2000)
    assert caught.value.code == "handler.output-too-large"


@pytest.mark.requirement("H1")
def test_64_bit_integers_are_accepted() -> None:
    assert to_json([(1 << 64) - 1, -(1 << 63)], "output") == [(1 << 64) - 1, -(1 << 63)]


@pytest.mark.requirement("H1")
def test_metrics_above_the_size_limit_are_refused() -> None:
    with pytest.raises(HandlerFailed, match="more than the 65,536 allowed") as refusal:
        accept(HandlerResult(output=1, metrics={"all": "x" * 70_000}))
    assert refusal.value.code == "handler.metrics-too-large"
