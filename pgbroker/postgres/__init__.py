"""Ground floor: everything that speaks to the Postgres server."""
