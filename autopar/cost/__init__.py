"""What a choice costs: operators, redistributions, memory over time; assembled into a solve.Problem."""
