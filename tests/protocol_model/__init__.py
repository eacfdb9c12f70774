"""The protocol as a model: designs, the rules that each needs, and a mutant for each rule."""
