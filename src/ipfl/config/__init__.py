"""The sections of a config: every setting, documented once."""
