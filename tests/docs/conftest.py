"""Skips the `gpu` and `compile` tiers where they cannot run."""

from cudnn_core.testing.tiers import pytest_collection_modifyitems as pytest_collection_modifyitems
