"""The likelihood of weighted transitions: laws, lost tails, penalties, full-batch objectives. No Lightning."""
