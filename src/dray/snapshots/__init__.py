"""Trees of files that travel with a job: what one is, how it is found, cut and packed. Knows no hub and no worker."""
