"""What both ends of the API must agree on. Light to import:
the command line needs it, and nothing else of this package."""

PREFIX = "/api/v1"
MAX_BODY_BYTES = 1024 * 1024
MOST_ITEMS = 200  # of one page
