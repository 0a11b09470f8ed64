"""Cameras to start from: averaged rotations and positions, frames placed one after the other."""
