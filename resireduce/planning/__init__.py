"""What a model will need and save: the bytes of its states, tensor by tensor, foreseen or measured."""
