"""Snapshots on a worker: files kept by what is in them, and the folders that tasks run in, laid out from those."""
