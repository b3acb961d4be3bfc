"""What was and what will be: minutes of the cluster, what failed, bars from the past into what is foreseen."""
