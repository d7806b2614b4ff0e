"""The reference video model and its clips: the workload of the demo, the gates and the tests."""
