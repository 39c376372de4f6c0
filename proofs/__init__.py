"""What is checked: obligations, the gate, traces, reports and the command line."""
