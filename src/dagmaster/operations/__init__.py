"""What users do to jobs: one verb in each module, one transaction each."""
