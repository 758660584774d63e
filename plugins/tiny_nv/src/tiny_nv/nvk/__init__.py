"""The device NV: NVIDIA's kernel driver without libcuda, through the interface NVK.

Importing this module opens nothing.
"""
