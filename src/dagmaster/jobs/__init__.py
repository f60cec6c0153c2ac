"""Jobs: what they are, which states they pass through, and what happens next. Pure: no clock, no database, no network."""
