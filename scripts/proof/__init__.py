"""How the recommender's choices compare with others', on cells that it was not shown."""
