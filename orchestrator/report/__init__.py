"""Reports: what was measured beside what was published, as HTML, Markdown and JSON.

::

    results (bench) + published (profiles/published) --compare--> Report --render--> report.html  report.md  report.json
"""
