"""An Adreno 630 without one: a stand-in of KGSL, an executor of PM4, and what runs its kernels."""
