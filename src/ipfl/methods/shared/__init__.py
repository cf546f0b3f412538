"""Steps and bases that methods share."""
