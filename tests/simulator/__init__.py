"""The simulator: real steps and a real planner under a virtual clock, on a store in memory that fails at every call."""
