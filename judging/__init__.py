"""Judging: who is asked, what is read from the answers, and how tournaments are played."""
