"""Run the user's function once on tensors without data, and write down every op below autograd."""
