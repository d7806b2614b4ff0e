"""A project as one meets them: Hydra's config, a Lightning module with manual optimization, a loader of two kinds of
views. Written for these tests, small where a real one is large; only the shapes of a batch are those of a real one."""
