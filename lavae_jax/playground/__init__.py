"""A page to decompose and edit scenes; `lavae playground` opens it."""
