"""All that works on a GPU: its memory, and batches made with cuDF. A copy may leave it out.

The other rooms import it inside the functions that `device="gpu"` reaches, and nowhere else.
"""

from tutorlib.gpu.memory import limit_tensorflow_memory, missing_for_gpu

__all__ = ["limit_tensorflow_memory", "missing_for_gpu"]
