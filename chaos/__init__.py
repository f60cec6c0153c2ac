"""Inject real faults into real processes for a given time, and check the result: `make chaos`, `make soak`.

testbed   a PostgreSQL with default durability, links through our own proxy, orchestrators and workers as released
load      jobs of every kind, submitted in a steady stream; each response is recorded outside the system
effects   the handlers of those jobs; they also record outside the system what they did
nemesis   selects faults at random, by a seed, and injects them
audit     what the database recorded: who claimed, who wrote, what was accepted
figures   the numbers of a run, and whether those that must be zero are
"""
