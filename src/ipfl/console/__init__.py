"""The web console: runs, their clients and their tokens in a browser, and over JSON.

Everything is read from the run stores through connections that cannot write (`found_runs`). `answers` are the
shapes of the answers; `figures`, `auction`, `client_page` and `transfers` compute them in the database;
`json_api` offers them as JSON with an OpenAPI description, and `pages` as HTML from `templates/`. `access`
decides who may see what; `guard` holds the limits and the headers of every answer; `console` has what all
routes share.

Needs the extra `ui`. Imported by `cli` only.
"""
