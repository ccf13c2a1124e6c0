"""Symbols: numbers and sizes that vary between calls."""
