"""Reproduce and minimise failures of PyTorch video-model training."""
