"""What users call, and where the stages are put one after another."""
