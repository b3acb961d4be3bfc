"""The core run in virtual time: whole clusters under faults (`faults`), and recorded workloads (`traces`)."""
