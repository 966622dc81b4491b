"""``twophp doctor``: what is wrong with a service's settings and surroundings, and what to do about it."""
