"""How ranks talk: communicators know tensors only, nothing of gradients."""
