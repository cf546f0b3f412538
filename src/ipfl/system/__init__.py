"""Files, retries, signals and plugins: what every layer needs of the machine."""
