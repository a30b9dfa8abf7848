"""What CP-SAT is asked: the exact finish, feasibility, the bottleneck problem."""
