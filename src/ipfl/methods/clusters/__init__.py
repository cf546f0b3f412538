"""Methods with several models at the server: IFCA, FedEM, FedSoft."""
