"""Marginalized bundle adjustment: unknowns, linear algebra, two solvers, covariance, diagnosis."""
