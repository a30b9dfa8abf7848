"""What repeats: quotients by periods that are told, shortened problems by periods that are found, and separators."""
