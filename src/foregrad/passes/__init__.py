"""Passes: from a program to a program that does the same with less memory or time."""
