"""Training a model that is cut into stages, each in a process of its own (model parallelism).

`keras_graph.py` reads a model's layers in order, `refusals.py` says what cannot be split,
`layer_times.py` measures what each layer takes (`policies/pipeline.py` decides where to cut).
`stage.py` computes a stage, `schedule.py` says in which order, `messages.py` carries activations
and their gradients over any mailbox, `part.py` is a rank's share of each step; `weights.py` frees
what a rank does not train, and makes the model whole again.
"""
