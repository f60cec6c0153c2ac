"""Orchestrators decide: they claim jobs, process the reports of workers, and write what happens next."""
