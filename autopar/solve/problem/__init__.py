"""The problem, a weighted constraint satisfaction problem with knapsack rows, and what all rooms say of it."""
