"""Orchestrators decide: they claim jobs, fold in what workers reported, and write what happens next."""
