"""Ratios against peers and limits, one command each: see README.md here."""
