"""Adopt the datasets of earlier releases: each becomes an asset of the platform `local` with approved versions, so that
it is still served."""

from dataclasses import dataclass

from dagmaster.database.assets.adopt import AdoptedAssets, UnadoptedCollection
from dagmaster.observe import log
from dagmaster.operations.assets.change import writer_of


@dataclass(frozen=True, slots=True)
class Adoption:
    """The datasets that became assets, and why other collections of the catalogue did not."""

    datasets: list[str]
    refusals: list[str]


async def adopt_and_report(store: AdoptedAssets) -> Adoption:
    """Adopt datasets, and log the collections that were not adopted: they are not served."""
    adopted = await adopt_datasets(store)
    refusals = [_refusal(collection) for collection in await store.unadopted_collections()]
    if refusals:
        log.get("adoption").warning("collections of the catalogue have no asset and are not served", refusals=refusals)
    return Adoption(adopted, refusals)


async def adopt_datasets(store: AdoptedAssets) -> list[str]:
    """The datasets that were adopted. A second call adopts nothing."""
    published = await store.published_datasets()
    for dataset_id in published:
        await store.copy_items(dataset_id)
    candidates = [*published, *await store.processed_datasets()]
    return [dataset_id for dataset_id in candidates if await store.adopt(dataset_id, writer_of(dataset_id))]


def _refusal(collection: UnadoptedCollection) -> str:
    reason = "none of its items has a version and a revision" if collection.is_dataset else "dagmaster did not write it"
    return f"collection {collection.collection_id} is not served: {reason}"
