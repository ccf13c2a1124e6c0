"""Cache: compiled programs in files and stores."""
