"""Every private name of torch that foregrad uses, a file for each part of torch."""
