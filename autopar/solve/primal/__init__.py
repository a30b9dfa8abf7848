"""Better choices: tree moves, annealing, large neighbourhoods, single moves, crossover."""
