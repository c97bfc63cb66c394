"""Run by each kernel of `make lab` and `make tutorial` when it starts, and in the lab's terminals.

JupyterLab records the language of the kernel in a page, and calls the page unsaved if it changed.
So kernels name version "3", as the pages do, whatever the exact version is.

TensorFlow 2.21 logs while it is imported, whatever TF_CPP_MIN_LOG_LEVEL is: that there is no GPU,
that oneDNN is on. Lines of that level (I) stay out of a page; warnings and errors come through.
"""

if "get_ipython" in globals():
    globals()["get_ipython"]().kernel.language_info["version"] = "3"


def _quiet_tensorflow():
    """Leave out what TensorFlow logs as information during its import."""
    import contextlib
    import importlib.machinery
    import os
    import subprocess
    import sys

    information = ["grep", "--line-buffered", "-vE", "^(I[0-9]{4} |WARNING: All log messages)"]

    @contextlib.contextmanager
    def filtered():
        # A process filters, so that the last words of one that dies are not lost.
        sys.stderr.flush()
        shown = os.dup(2)
        with subprocess.Popen(information, stdin=subprocess.PIPE, stdout=shown) as grep:
            os.dup2(grep.stdin.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(shown, 2)
                os.close(shown)

    class Quiet(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name != "tensorflow":
                return None
            sys.meta_path.remove(cls)
            spec = super().find_spec(name, path, target)
            if spec is not None:
                execute = spec.loader.exec_module

                def exec_module(module):
                    with filtered():
                        execute(module)

                spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Quiet)


_quiet_tensorflow()
del _quiet_tensorflow
