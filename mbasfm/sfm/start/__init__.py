"""Cameras to start from: averaged rotations and positions, or frames placed one after the other."""
