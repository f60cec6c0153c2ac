"""Where files are: zones, locations, and stores that put, get, list and delete objects behind one interface."""
