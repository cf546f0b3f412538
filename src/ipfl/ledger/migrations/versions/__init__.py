"""One module per migration, named by its revision."""
