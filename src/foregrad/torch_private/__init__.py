"""Every private name of torch that foregrad uses, a file for each part of torch. Checked against torch 2.13."""
