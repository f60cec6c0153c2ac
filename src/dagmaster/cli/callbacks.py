"""`dagmaster callbacks`: list callbacks and the attempts to deliver them; deliver one again."""

from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Group, State, as_json, page_options, pass_state
from dagmaster.cli.completion import platform_option
from dagmaster.cli.tables import Column, ago, at, print_records, print_table
from dagmaster.client.escaping import one_line

if TYPE_CHECKING:
    from dagmaster.client.models.base import Json
    from dagmaster.client.models.callback_events import CallbackInfo, DeliveryInfo


@click.group(cls=Group)
def callbacks() -> None:
    """List callbacks and deliver them again."""


@callbacks.command("ls")
@click.option("--request", "request_id", metavar="ID", help="Only callbacks of this request")
@platform_option("Only callbacks of this platform")
@click.option("--state", type=click.Choice(["pending", "delivered", "failed"]), help="Only callbacks in this state")
@page_options(1000, default=50, entry="callback")
@pass_state
def list_callbacks(state: State, /, *, limit: int, after: str | None, **filters: str | None) -> None:
    """List callbacks, newest first."""
    state.print_page("callbacks", state.client.callbacks(limit, after, **filters), _print_callbacks)


def _print_callbacks(state: State, page: "list[Json]") -> None:
    from dagmaster.client.models.callback_events import CallbackInfo

    columns: list[Column[CallbackInfo]] = [
        Column("callback", lambda callback: str(callback.callback_id)),
        Column("age", lambda callback: ago(callback.created_at, state.client.now), is_number=True, drop=3),
        Column("request", lambda callback: one_line(callback.request_id)),
        Column("platform", lambda callback: one_line(callback.platform_id), drop=4),
        Column("status", lambda callback: one_line(callback.status)),
        Column("state", lambda callback: callback.state, is_state=True),
        Column("attempts", lambda callback: str(callback.attempts), is_number=True, drop=2),
        Column("last response", _last_response, drop=1, is_long=True),
    ]
    print_records(state, columns, CallbackInfo, page)


@callbacks.command("show")
@click.argument("callback")
@pass_state
def show_callback(state: State, callback: str) -> None:
    """Show a callback: its content, and each attempt to deliver it. CALLBACK is an id, or the beginning of one."""
    response = state.client.callback(state.client.find_callback(callback))
    state.print_result(response, lambda: _print_callback(state, response))


@callbacks.command("repeat")
@click.argument("callback")
@pass_state
def repeat_callback(state: State, callback: str) -> None:
    """Deliver a callback again now, even if it was delivered or given up.

    The id stays the same, so receivers can ignore a duplicate.
    """
    response = state.client.repeat_callback(state.client.find_callback(callback))
    state.print_result(response, f"callback {response.get('callback_id')} will be delivered again")
    state.comment(f"see the result with: dagmaster callbacks show {response.get('callback_id')}")


def _print_callback(state: State, response: "Json") -> None:
    from dagmaster.client.models.base import read
    from dagmaster.client.models.callback_events import CallbackDetail, DeliveryInfo

    callback = read(CallbackDetail, response)
    facts = {
        "callback": callback.callback_id,
        "platform": one_line(callback.platform_id),
        "url": one_line(callback.url),
        "body": as_json(callback.payload, indent=False),
        "created": f"{at(callback.created_at)} UTC, {ago(callback.created_at, state.client.now)} ago",
        "state": _state(callback),
    }
    state.say_facts(facts, width=11)
    if callback.deliveries:
        columns: list[Column[DeliveryInfo]] = [
            Column("attempt", lambda delivery: str(delivery.number), is_number=True),
            Column("began (UTC)", lambda delivery: at(delivery.started_at)),
            Column("response", _response, is_long=True),
        ]
        print_table(state.console, columns, callback.deliveries)
    if callback.state != "delivered":
        state.note(f"deliver it now with: dagmaster callbacks repeat {callback.callback_id}")


def _state(callback: "CallbackInfo") -> str:
    if callback.is_under_way:
        return "an attempt is under way"
    if callback.next_attempt_at is not None:
        return f"{callback.state}, next attempt at {at(callback.next_attempt_at)} UTC"
    return callback.state


def _last_response(callback: "CallbackInfo") -> str:
    return one_line(callback.last_error or str(callback.last_status_code or ""))


def _response(delivery: "DeliveryInfo") -> str:
    if delivery.finished_at is None:
        return "none yet"
    return one_line(delivery.error or str(delivery.status_code))
