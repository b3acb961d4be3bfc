"""Which placement strategy holds, where the policy leaves that to what the cluster and its work are like."""
