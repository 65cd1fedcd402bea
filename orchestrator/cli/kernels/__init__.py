"""Commands of `deploy kernels`."""
