"""Programs: one for each message, by what they are about."""
