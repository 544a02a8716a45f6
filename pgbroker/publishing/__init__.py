"""The publishing side for applications: the task class, transactions, batches."""
