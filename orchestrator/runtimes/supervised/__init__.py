"""A server as a process below a supervisor of ours, whoever starts that: on this machine, or in a job on a node."""
