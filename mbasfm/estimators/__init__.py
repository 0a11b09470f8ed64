"""The pose of one pair or of one frame, by RANSAC."""
