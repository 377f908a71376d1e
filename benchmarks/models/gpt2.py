"""GPT-2 language models (Radford et al., 2019): the transformers implementation with configurations of our own."""

from torch import nn


def gpt2_bytes() -> nn.Module:
    """Build a GPT-2 of 6 layers of width 128 for bytes and byte pairs, 1.3 million parameters.

    The vocabulary of 1,024 (256 bytes and the 768 most frequent pairs) makes the tied embedding ``wte`` (1,024 x 128)
    larger than the largest grouped matrix (128 x 512), as in GPT-2 medium: it is the specific layer.  With bare
    bytes it would be the smaller one, and unused padding rows would flatter every scheme that drops rows.
    Positions outnumber the context of 48, so that no activation of (context x width) has the shape of ``wpe``.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1024,
        n_positions=80,
        n_embd=128,
        n_layer=6,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)
