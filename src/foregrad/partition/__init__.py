"""Cut a program into halves that are compiled by themselves."""
