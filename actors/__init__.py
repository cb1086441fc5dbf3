"""Remora's actors: the pure engine, its runners, and the two shells (worker and ingress) that give them a body."""
