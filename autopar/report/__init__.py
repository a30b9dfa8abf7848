"""What a plan says, as typed records and as text."""
