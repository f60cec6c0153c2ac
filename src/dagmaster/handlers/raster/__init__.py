"""Handlers that turn raster files into COGs, a mosaic, and the documents that describe them.

    validate ─▶ generate_tiling_scheme ─▶ process_tile × n ─▶ create_mosaic ─▶ stac_… (handlers/stac)
             └▶ create_cog ──────────────────────────────────────────────────▶ stac_register_item

Each writes its objects under their last names, whole or not at all, and never over something else: what is the same is left as it
is. So a task may run twice, and a resumed job finds what it made before. `about` and `source` travel from the first task to
the others, so that all mean the same.
"""
