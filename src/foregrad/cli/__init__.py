"""The `foregrad` command."""
