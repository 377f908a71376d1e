"""BERT encoders (Devlin et al., 2019): the transformers implementation."""

from torch import nn

from benchmarks.training.models.example import give_inputs

WORDS = 30522
"""Words of the uncased English vocabulary."""
VOCABULARY = 30528
"""WORDS padded to a multiple of 8, as the trained models have it."""


def _bert(vocabulary: int, positions: int, width: int, layers: int, heads: int, dropout: float) -> nn.Module:
    """Build a BERT for question answering; it has no pooler, which would get no gradient."""
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=positions,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForQuestionAnswering(config)


def bert_base() -> nn.Module:
    """Build BERT-base for question answering, 108.9 million parameters; its vocabulary is padded to 30,528 words."""
    return _bert(VOCABULARY, 512, width=768, layers=12, heads=12, dropout=0.1)


def bert_large() -> nn.Module:
    """Build BERT-large for question answering, 334.1 million parameters; its vocabulary is padded to 30,528 words."""
    return _bert(VOCABULARY, 512, width=1024, layers=24, heads=16, dropout=0.1)


def bert_questions() -> nn.Module:
    """Build a BERT of 6 layers of width 128 for question answering, 1.3 million parameters.

    768 words make ``word_embeddings`` (768 x 128) larger than the largest grouped matrix (512 x 128), as in BERT-base:
    it is the specific layer.  Positions outnumber the length of 40, so that no activation of (length x width) has the
    shape of ``position_embeddings``.
    """
    return _bert(768, 80, width=128, layers=6, heads=4, dropout=0.0)


give_inputs(__name__)
