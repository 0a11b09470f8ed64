"""The verdict on pairs of photographs: verified, with which lens, and which are edges of the pose graph."""
