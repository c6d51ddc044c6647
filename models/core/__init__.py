"""The network: configuration, PyTorch module, native checkpoints, model repositories."""
