"""The map server: STAC API, tiles, files and pages of the catalogued datasets, in a process without jobs."""

import logging

# On import stac-fastapi creates settings that are not used here, and warns that they are not set.
logging.getLogger("stac_fastapi.types.config").setLevel(logging.ERROR)
