"""Methods with one model at the server: FedAvg and its relatives."""
