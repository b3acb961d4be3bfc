"""Hubs that stand by as gateways: the product's own, on a loop and sockets of the simulated world."""
