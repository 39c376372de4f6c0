"""What is true: the pool, one attention group, `allocate_slots`, its caller, and the statements."""
