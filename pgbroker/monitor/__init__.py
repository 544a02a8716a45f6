"""Seeing and mending: what the command line, Flower and the web pages are made from."""
