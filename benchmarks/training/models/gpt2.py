"""GPT-2 language models (Radford et al., 2019): the transformers implementation."""

from torch import nn

from benchmarks.training.models.example import give_inputs


def _gpt2(vocabulary: int, positions: int, width: int, layers: int, heads: int, dropout: float) -> nn.Module:
    """Build a GPT-2 with tied embedding and without a cache of keys and values, which only text generation needs."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        activation_function="gelu_pytorch_tanh",  # gelu_new in one kernel
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def gpt2_medium() -> nn.Module:
    """Build GPT-2 medium, 354.8 million parameters."""
    return _gpt2(50257, 1024, width=1024, layers=24, heads=16, dropout=0.1)


def gpt2_large() -> nn.Module:
    """Build GPT-2 large, 774.0 million parameters."""
    return _gpt2(50257, 1024, width=1280, layers=36, heads=20, dropout=0.1)


def gpt2_bytes() -> nn.Module:
    """Build a GPT-2 of 6 layers of width 128 for bytes and byte pairs, 1.3 million parameters.

    The vocabulary of 1,024 (256 bytes and the 768 most frequent pairs) makes the tied embedding ``wte`` (1,024 x 128)
    larger than the largest grouped matrix (128 x 512), as in GPT-2 medium: it is the specific layer.  With bare
    bytes it would be the smaller one, and unused padding rows would flatter every scheme that drops rows.
    Positions outnumber the context of 48, so that no activation of (context x width) has the shape of ``wpe``.
    """
    return _gpt2(1024, 80, width=128, layers=6, heads=4, dropout=0.0)


def gpt2_small_bytes() -> nn.Module:
    """Build a GPT-2 with the layers of GPT-2 small for bytes and byte pairs, 85.9 million parameters."""
    return _gpt2(1024, 80, width=768, layers=12, heads=12, dropout=0.0)


give_inputs(__name__)
