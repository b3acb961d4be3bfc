"""What attempts use of this machine: cores and memory by the process table, cards by their driver, summed up."""
