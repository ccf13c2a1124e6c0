"""Attacks: files that are well formed and hostile. None of their code may run."""
