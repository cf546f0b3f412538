"""What people see: progress while a run goes on, tables and plots after it, the config with its comments."""
