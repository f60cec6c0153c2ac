"""Write the fingerprint of the schema to fingerprint.txt, which roles read. A test compares it with the records."""

from importlib import resources
from pathlib import Path

from dagmaster.database.schema.deploy import fingerprint

if __name__ == "__main__":
    Path(str(resources.files("dagmaster.database.schema").joinpath("fingerprint.txt"))).write_text(fingerprint() + "\n")
