"""Vocabularies that BERT and GPT-2 were pretrained with. Imports no torch.

Prepared: `vocab.txt`, one word piece per line; `vocab.json` and `merges.txt`, byte pairs.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data.dataset import Dataset, Report, files_of


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Dataset):
    """BERT's word pieces (Devlin et al., 2019), or GPT-2's byte pairs (Radford et al., 2019)."""

    def prepare(self, source: Path, target: Path, root: Path, report: Report) -> dict[str, Any]:
        """Copy the files."""
        for file in self.files:
            shutil.copyfile(source / file.name, target / file.name)
        return {}


GPT2_FILES = """
vocab.json 1_042_301 sha256:196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
merges.txt 456_318 sha256:1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
"""

BERT = Vocabulary(
    title="BERT's vocabulary: 30,522 word pieces of English in lower case",
    terms="Apache-2.0",
    address="https://huggingface.co/google-bert/bert-base-uncased/resolve/86b5e0934494bd15c9632b12f734a8a67f723594/",
    files=files_of("vocab.txt 231_508 sha256:07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
)
GPT2 = Vocabulary(
    title="GPT-2's vocabulary: 50,257 byte pairs",
    terms="MIT, modified",
    address="https://huggingface.co/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/",
    files=files_of(GPT2_FILES),
)
