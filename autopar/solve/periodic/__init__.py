"""What repeats: periods, separators between them, shortened problems, transfer matrices."""
