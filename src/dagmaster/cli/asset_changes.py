"""Changes of an asset from the command line: selecting a version, and hints if a change is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from dagmaster.cli.command import State
from dagmaster.client.escaping import one_line
from dagmaster.client.models.assets import AssetInfo, VersionInfo
from dagmaster.client.models.base import Json, read
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest
from dagmaster.quantities import counted

# The hint for a change that is refused, by error code: the next command.
_NEXT_STEPS = {
    "clearance.required": "add --clearance ouo (for internal users) or --clearance public (for everyone)",
    "clearance.differs": "leave out --clearance; `dagmaster assets clear {asset} LEVEL` changes the clearance",
    "asset.changed": "read it again with `dagmaster assets show {asset}`, then repeat the command",
    "version.revised": "open the newest revision first: `dagmaster assets link {asset}`",
    "version.processing": "wait for the job of the version: `dagmaster assets show {asset}` shows its id",
    "version.failed": "submit it again; `dagmaster assets show {asset}` shows the reason",
    "version.not-found": "`dagmaster assets show {asset}` lists the versions",
    "export.not-public": "`dagmaster assets show {asset}` shows the approved versions and the clearance",
    "export.running": "wait for the job of the export: `dagmaster assets show {asset}` shows its id",
    "version.not-published": "`dagmaster assets show {asset}` shows which versions are served",
}


class SeenAsset:
    """An asset as the command has read it. A change is refused if its ETag, or the given one, is no longer current."""

    def __init__(self, state: State, name: str, etag: str | None = None) -> None:
        self._state = state
        self.info = read(AssetInfo, state.client.asset(name))
        self._etag = etag or self.info.etag

    @property
    def name(self) -> str:
        return self.info.dataset_id

    def change(self, action: str, *, version: int | None = None, **request: str | int | None) -> Json:
        """The asset after the change."""
        with self._advise_on_conflict():
            return self._state.client.change_asset(
                self.info.asset_id, action, request, version=version, etag=self._etag
            )

    def delete(self, *, version: int | None, reason: str | None) -> Json:
        with self._advise_on_conflict():
            return self._state.client.delete_asset(self.info.asset_id, version=version, reason=reason, etag=self._etag)

    def name_of(self, version: int | None) -> str:
        """The name of a version, or of the whole asset."""
        return self.name if version is None else f"version {version} of {self.name}"

    def is_confirmed(self, verb: str, version: int | None) -> bool:
        count = sum(each.deleted_at is None for each in self.info.versions)
        versions_text = f" with {counted(count, 'version')}" if version is None else ""
        return self._state.confirm(f"{verb} {self.name_of(version)}{versions_text}?")

    def version_to_decide(self, verb: str) -> int:
        """The version that waits for review; or else one that is being processed; or else, for `approve`, one that was
        rejected or unpublished; or else one that has failed."""
        candidates = self._versions_to_decide(verb)
        if len(candidates) == 1:
            return candidates[0].version_ordinal
        if candidates:
            numbers = ", ".join(str(version.version_ordinal) for version in candidates)
            raise InvalidRequest(f"more than one version to {verb}: {numbers}", code="usage", hint="add --version N")
        raise Conflict(
            f"no version of {self.name} waits for review",
            code="version.none-to-review",
            hint=f"see `dagmaster assets show {self.name}`",
        )

    def _versions_to_decide(self, verb: str) -> list[VersionInfo]:
        """The candidates. A version that is being processed or has failed is one too: the API refuses the decision and
        gives the reason."""
        versions = self._existing_versions
        waiting = [version for version in versions if _is_to_review(version)]
        active = [version for version in versions if version.processing_state in ("queued", "processing")]
        withdrawn = [version for version in versions if verb == "approve" and _is_withdrawn(version)]
        failed = [version for version in versions if version.processing_state == "failed"]
        return waiting or active[-1:] or withdrawn or failed[-1:]

    def version_to_show(self, revision: int | None) -> tuple[int, int | None]:
        """The version and revision that wait for review, or else the latest approved version."""
        waiting = [version for version in self._existing_versions if _is_to_review(version)]
        if waiting:
            return waiting[-1].version_ordinal, revision or waiting[-1].revision
        if self.info.latest_approved_version_ordinal is None:
            raise Conflict(
                f"{self.name} has nothing to show: no version is approved or waits for review",
                code="version.none-to-show",
                hint=f"see `dagmaster assets show {self.name}`",
            )
        return self.info.latest_approved_version_ordinal, revision

    @property
    def _existing_versions(self) -> list[VersionInfo]:
        return [version for version in self.info.versions if version.deleted_at is None]

    @contextmanager
    def _advise_on_conflict(self) -> Iterator[None]:
        """If a change is refused, add a hint with the next command, and print what has changed meanwhile."""
        try:
            yield
        except DagmasterError as error:
            if error.code == "asset.changed" and not self._state.json:
                for line in _changes(error):
                    self._state.note(line)
            if next_step := _NEXT_STEPS.get(error.code):
                error.hint = next_step.format(asset=self.name)
            raise


def _is_to_review(version: VersionInfo) -> bool:
    return version.approval_state == "pending_review" and version.processing_state == "completed"


def _is_withdrawn(version: VersionInfo) -> bool:
    """Whether an approval publishes a version again. If the newest revision of an unpublished version has failed, the
    approval publishes the revision that was approved before."""
    is_unpublished = version.unpublished_at is not None
    if version.processing_state == "failed":
        return is_unpublished and version.approved_revision not in (None, version.revision)
    return version.processing_state == "completed" and (is_unpublished or version.approval_state == "rejected")


def _changes(error: DagmasterError) -> Iterator[str]:
    for event in error.facts.get("events") or []:
        version = "" if event.get("version_ordinal") is None else f" version {event['version_ordinal']}"
        reason = f": {one_line(event['reason'])}" if event.get("reason") else ""
        action = event.get("action", "").replace("_", " ")
        yield f"changed meanwhile: {action}{version}, by {event.get('actor')}{reason}"


def next_steps(asset: AssetInfo) -> list[str]:
    """What to do next about each version of an asset, with the commands."""
    existing = [version for version in asset.versions if version.deleted_at is None]
    return [step for version in existing if (step := _next_step(asset, version))]


def approve_command(asset: AssetInfo, ordinal: int) -> str:
    clearance = " --clearance ouo" if asset.clearance_state == "uncleared" else ""
    return f"dagmaster assets approve {asset.dataset_id} --version {ordinal}{clearance}"


def _next_step(asset: AssetInfo, version: VersionInfo) -> str | None:
    number, name = version.version_ordinal, asset.dataset_id
    resubmit_hint = f"submit it again under the label {version.version_label}, or delete it"
    if version.processing_state == "failed":
        return f"version {number} has failed: {resubmit_hint}"
    if version.processing_state != "completed":
        return f"version {number} is being processed; watch it with:\n  dagmaster jobs watch {version.current_job_id}"
    if version.unpublished_at:
        return f"version {number} is unpublished; publish it again with:\n  {approve_command(asset, number)}"
    if version.approval_state == "rejected":
        return f"version {number} is rejected: {resubmit_hint}"
    if version.approval_state == "pending_review":
        return (
            f"version {number} waits for review; see it, then decide:\n  dagmaster assets link {name}\n"
            f"  {approve_command(asset, number)}\n  dagmaster assets reject {name} --version {number} --reason …"
        )
    return None


def maps_url_of(state: State) -> str | None:
    """The URL of the map server of the platform that this command uses, if it is known."""
    from dagmaster.client.discovery import find_maps

    if (state.server or state.settings.server_url) and not state.settings.public_url:
        return None
    try:
        return find_maps(state.settings)
    except DagmasterError:
        return None
