"""Notifications between processes (LISTEN and NOTIFY): hints that something may have changed, never data."""
