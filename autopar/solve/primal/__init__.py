"""Better choices: tree moves, annealing, large neighbourhoods, repair, crossover."""
