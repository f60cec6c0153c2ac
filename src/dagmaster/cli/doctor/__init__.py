"""`dagmaster doctor`: check this machine, the database and the platform, and say how to fix what is wrong.

`machine` and `database` hold the tables of checks: a name, and what looks and judges. Judging is pure. `findings` runs
the checks; `command` prints what they found.
"""
