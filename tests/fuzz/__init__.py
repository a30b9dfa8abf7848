"""Random programs, meshes and plans: each drawn from one integer, printed as Python, and made small when it fails."""
