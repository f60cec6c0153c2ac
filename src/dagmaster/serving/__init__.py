"""What map users see: STAC API, tiles and files, composed of others' servers in a process of its own."""
