"""A network as numbers on disk and as a PyTorch module: configuration, blocks, checkpoints, folders of models."""
