"""What foregrad asks of the process that it runs in: threads, forks, memory, folders."""
