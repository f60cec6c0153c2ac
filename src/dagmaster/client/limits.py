"""Constants that the server and the client of the API share. Imports nothing, so that commands start fast."""

PREFIX = "/api/v1"
MAX_BODY_BYTES = 1024 * 1024
MAX_ITEMS = 200  # of one page
