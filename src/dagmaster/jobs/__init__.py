"""Jobs: their records, their states, and what happens next. Pure: no clock, no database, no network."""
