"""The command `lavae playground`, from a checkout."""

import _checkout

if __name__ == "__main__":
    _checkout.run("playground")
