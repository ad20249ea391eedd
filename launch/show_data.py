"""The command `lavae show`, from a checkout."""

import _checkout

if __name__ == "__main__":
    _checkout.run("show")
