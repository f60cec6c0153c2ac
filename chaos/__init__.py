"""Real faults on real processes, for as long as is asked for, and a verdict: `make chaos`, `make soak`.

testbed   a PostgreSQL with default durability, links through a proxy of our own, orchestrators and workers as they ship
load      jobs of every kind, submitted in a steady stream; each answer is noted outside the system
effects   the handlers of those jobs; they note what they did outside the system too
nemesis   draws faults from a list, by a seed, and lets them happen
audit     what the database saw: who claimed, who wrote, what was accepted
figures   the numbers, and whether the zeros are zero
"""
