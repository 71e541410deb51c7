"""`python -m embedded.gorush`: run a development gorush until SIGINT or SIGTERM."""

import sys

from embedded.dev_server import new_parser, run
from embedded.gorush.server import Settings, create_app


def main() -> int:
    parser = new_parser("embedded.gorush", "Development gorush", 8088)
    parser.add_argument("--hide-token", action="store_true", help="mask device tokens in answers, gorush's default")
    arguments = parser.parse_args()
    settings = Settings(data=arguments.data, hide_token=arguments.hide_token)
    return run("gorush", lambda: create_app(settings), arguments)


if __name__ == "__main__":
    sys.exit(main())
