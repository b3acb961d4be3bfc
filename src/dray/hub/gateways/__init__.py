"""Sockets of workers that are connected to another hub than the one that leads, over one link per pair of hubs."""
