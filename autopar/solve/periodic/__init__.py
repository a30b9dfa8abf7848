"""What repeats: the layer of every node, quotients and shortened problems, by places that are told."""
