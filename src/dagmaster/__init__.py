"""dagmaster: durable geospatial workflows on PostgreSQL."""

__version__ = "0.1.0"
