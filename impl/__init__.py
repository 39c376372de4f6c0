"""What runs: the PyTorch implementation, and the adapters behind one protocol."""
