"""Tables, labels and schemas: everything a user passes in, as columns of known meaning."""
