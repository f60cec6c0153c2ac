"""Operations: one verb a module, one transaction each."""
