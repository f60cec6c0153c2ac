"""`dagmaster completion`: scripts for shells, and the names and ids that they request.

Completion must be fast: errors and timeouts of the platform are ignored.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from dagmaster.cli.command import Callback, Command, State, pass_state
from dagmaster.client.escaping import escaped, one_line

if TYPE_CHECKING:
    from dagmaster.client.json_client import JsonClient

_TIMEOUT_SECONDS = 0.4
_MAX_ITEMS = 50
_VARIABLE = "_DAGMASTER_COMPLETE"
# Other characters have a special meaning in shells.
_SAFE = re.compile(r"[\w.:-]+")
_SETUP = {
    "bash": 'eval "$(dagmaster completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(dagmaster completion zsh)"  # in ~/.zshrc, after compinit',
    "fish": "dagmaster completion fish > ~/.config/fish/completions/dagmaster.fish",
}

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(list(_SETUP)))
@pass_state
def completion(state: State, shell: str) -> None:
    """Print the script for shell completion of commands, workflows and jobs.

    \b
    bash:  eval "$(dagmaster completion bash)"
    zsh:   eval "$(dagmaster completion zsh)"
    fish:  dagmaster completion fish > ~/.config/fish/completions/dagmaster.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    # The template only: click would also look for the shell, which need not be installed on this machine.
    root = click.get_current_context().find_root().command
    script = kind.source_template % kind(root, {}, "dagmaster", _VARIABLE).source_vars()
    state.print_result({"shell": shell, "script": script, "setup": _SETUP[shell]}, script.rstrip())


def _completing(read: "Callable[[JsonClient], list[CompletionItem]]") -> Complete:
    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            items = read(_client(context))
        except Exception:  # completion fails silently
            return []
        return [item for item in items if item.value.startswith(incomplete) and _SAFE.fullmatch(item.value)]

    return complete


def _client(context: click.Context) -> "JsonClient":
    state = context.find_object(State) or State()
    return state.client_with(_TIMEOUT_SECONDS)


def _items(
    responses: list[dict[str, Any]], name: str, help_of: Callable[[dict[str, Any]], str]
) -> list[CompletionItem]:
    return [CompletionItem(str(response[name]), help=help_of(response)) for response in responses]


def _workflows(client: "JsonClient") -> list[CompletionItem]:
    return _items(client.workflows(200), "workflow_id", lambda workflow: escaped(one_line(workflow["name"])))


def _jobs(client: "JsonClient") -> list[CompletionItem]:
    jobs, _ = client.jobs(_MAX_ITEMS)
    return _items(jobs, "job_id", lambda job: f"{job['workflow_id']} {job['status']}")


def _queues(client: "JsonClient") -> list[CompletionItem]:
    return _items(client.queues(), "queue", lambda queue: f"{queue['depth']} waiting")


def _assets(client: "JsonClient") -> list[CompletionItem]:
    assets, _ = client.assets(_MAX_ITEMS)
    return _items(assets, "dataset_id", lambda asset: f"{asset['platform_id']}, {asset['clearance_state']}")


def _platforms(client: "JsonClient") -> list[CompletionItem]:
    return _items(client.platforms(), "platform_id", lambda platform: escaped(one_line(platform["display_name"])))


complete_assets = _completing(_assets)
complete_jobs = _completing(_jobs)
complete_platforms = _completing(_platforms)
complete_queues = _completing(_queues)
complete_workflows = _completing(_workflows)


def platform_option(text: str) -> Callable[[Callback], Callback]:
    return click.option("--platform", "platform_id", metavar="ID", shell_complete=complete_platforms, help=text)


def complete_workflows_or_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names, unless the argument looks like a file."""
    names = [] if "/" in incomplete or "." in incomplete else complete_workflows(context, parameter, incomplete)
    return names or [CompletionItem(incomplete, type="file")]
