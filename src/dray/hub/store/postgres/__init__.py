"""The store in a PostgreSQL database: one hub leads, others on the same database stand by."""
