"""The fused step of `kernels.cpu` behind the runner's interface: the torch runner, but for its forward pass."""
