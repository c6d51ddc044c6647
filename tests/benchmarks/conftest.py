"""Fixtures of the kernels' plans, for the tests of benchmarks that plan launches."""

from tests.turbofno_ops.conftest import plan_file, plan_library, served_shapes

__all__ = ["plan_file", "plan_library", "served_shapes"]
