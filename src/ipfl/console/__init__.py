"""The web console: runs, their clients and their tokens in a browser, and over JSON.

Everything is read from the run stores through connections that cannot write (`run_list`). `records` are the
shapes of the answers; `figures`, `auction`, `accounts` and `transfers` compute them in the database; `api`
offers them as JSON with an OpenAPI description, and `pages` as HTML from `templates/` (`rendering`);
`actions` are the pages that start or stop something. `access` decides who may see what; `guard` holds the
limits and the headers of every answer. `starting` starts, stops and resumes runs, each as a process of its
own (`ipfl run`), and `form` makes the form for it from the config's schema.

Needs the extra `ui`. Imported by `cli` only.
"""
