"""The suite's asserts explain themselves, as if they stood here."""

import pytest

pytest.register_assert_rewrite("broker.testing.conformance")
