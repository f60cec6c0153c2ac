"""The end of a job, as the triggers of the database apply it to an asset."""

from dataclasses import replace

from dagmaster.assets.states import AssetState, ProcessingState


def with_processing(asset: AssetState, ordinal: int, processing: ProcessingState) -> AssetState:
    """The asset after the job of the newest revision of a version has started or ended."""
    versions = (replace(each, processing=processing) if each.ordinal == ordinal else each for each in asset.versions)
    return replace(asset, versions=tuple(versions))
