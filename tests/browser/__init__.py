"""Tests that drive the page in Chromium. A package, so that its browser is closed before other tests begin."""
