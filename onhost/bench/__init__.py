"""Measures a serving endpoint the way its users feel it: streamed, counted by the server's own usage."""
