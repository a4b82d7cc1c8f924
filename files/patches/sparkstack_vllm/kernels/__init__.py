"""Triton kernels: the LM head in INT8, the draft head in FP8 and NVFP4. They need torch and Triton alone."""
