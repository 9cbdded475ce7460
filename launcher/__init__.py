"""The launcher: decide how many workers, train, stay in the budget, explain."""
