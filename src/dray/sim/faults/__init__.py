"""Hub, agents, supervisors, network, store and clock in one process from one seed, with everything going wrong."""
