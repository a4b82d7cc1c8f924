"""Kernels of the vLLM plugin, measured on a GPU."""
