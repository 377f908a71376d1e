"""BERT encoders (Devlin et al., 2019): the transformers implementation with configurations of our own."""

from torch import nn


def bert_questions() -> nn.Module:
    """Build a BERT of 6 layers of width 128 for question answering, 1.3 million parameters, without pooler.

    768 words make ``word_embeddings`` (768 x 128) larger than the largest grouped matrix (512 x 128), as in BERT-base:
    it is the specific layer.  Positions outnumber the length of 40, so that no activation of (length x width) has the
    shape of ``position_embeddings``.  A pooler would get no gradient.
    """
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        vocab_size=768,
        max_position_embeddings=80,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForQuestionAnswering(config)
