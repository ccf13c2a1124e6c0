"""Program: forward and backward as one pure graph with a typed signature."""
