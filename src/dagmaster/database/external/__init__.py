"""The external database: a second one, outside of this installation, with the layers of public data."""
