"""Tests of several replicas."""
