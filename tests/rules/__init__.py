"""Tests of the rules; failures in the shared test bodies of `tables` show their values as those of a test module do."""

import pytest

pytest.register_assert_rewrite("tests.rules.tables")
