"""Virtual time, chance, the network, and what truly ran."""
