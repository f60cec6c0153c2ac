"""Handlers that turn raster files into COGs, a mosaic, and the documents that describe them.

    validate ─▶ generate_tiling_scheme ─▶ process_tile × n ─▶ create_mosaic ─▶ stac_… (handlers/stac)
             └▶ create_cog ──────────────────────────────────────────────────▶ stac_register_item

Each handler publishes COGs, mosaics and tiling schemes under their final names, atomically, and never overwrites one
with other content. Equal content is left as it is, so a task may run twice, and a resumed job finds its earlier
objects. STAC documents and the recipe are replaced. The first task passes `about` and `source` to all others, so that
all describe the same dataset.
"""
