"""Your own data: tables, arrays, images and archives, read into federated data."""
