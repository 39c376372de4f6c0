"""The one exception of the allocator."""


class AllocatorError(ValueError):
    """A call that the allocator refuses because the caller is wrong; its state is as it was before.

    Running out of blocks is no error: `allocate_slots` answers None.
    """
