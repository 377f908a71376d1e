"""How the C library of a rank gives out memory: so that what is resident is what lives. Imports no torch.

glibc's malloc, left to itself, learns from the first large tensors that are freed to take such blocks from its heap,
from which freed ones seldom go back to the system: most of what streamed gradients save stays resident. With a
threshold that is set it learns nothing, and every larger block has pages of its own, which go back at once.
"""

from collections.abc import Mapping

THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
MALLOC: Mapping[str, str] = {
    THRESHOLD: str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""glibc's: blocks of 1 MiB and more; and so much may be free at the heap's end, since to give it back and ask for it
anew takes time, which malloc would have learned too. torch's: tensors of 2 MiB and more have huge pages where the
kernel has some, since to make them anew for each gradient takes time. Other C libraries and systems take no notice."""


def with_malloc(variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with those of malloc that neither they nor the environment `given` set."""
    return {name: value for name, value in MALLOC.items() if name not in given} | dict(variables)
