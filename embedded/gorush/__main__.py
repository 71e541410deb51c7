"""`python -m embedded.gorush`: run a development gorush until SIGINT or SIGTERM."""

import sys

from embedded.dev_server import new_parser, run
from embedded.gorush.server import create_app

if __name__ == "__main__":
    parser = new_parser("embedded.gorush", "Development gorush", 8088)
    parser.add_argument("--hide-token", action="store_true", help="mask device tokens in answers, gorush's default")
    arguments = parser.parse_args()
    sys.exit(run("gorush", lambda: create_app(arguments.data, hide_token=arguments.hide_token), arguments))
