"""Third-party models as a `GPT`: models of transformers, and checkpoints of the LS-attention paper's author.

Each importer returns a model in evaluation mode, in float32 on the CPU, without dropout. It uses every tensor of the
source, or fails with an error that names the tensor.
"""

from longshort.hf.importers.any_model import from_transformers
from longshort.hf.importers.author import from_author
from longshort.hf.importers.gpt2 import from_gpt2

__all__ = ["from_author", "from_gpt2", "from_transformers"]
