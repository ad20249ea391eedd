"""The command `lavae export`, from a checkout."""

import _checkout

if __name__ == "__main__":
    _checkout.run("export")
