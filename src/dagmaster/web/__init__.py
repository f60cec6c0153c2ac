"""What every HTTP server of ours is made of: the door in front of it, how it tells of errors, its port."""
