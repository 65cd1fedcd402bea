"""The verbs: each reads as a sentence. Its face is its modules, imported by name when a command runs.

- profiles: `listing`, `planning`, `explain`, `capacity`, `flag_tables`, `environment`, `lock`, `schemas`
- made from what there is: `onboard_model`, `onboard_engine` (of `engine_sources`), both by `onboard_file`;
  `onboard_profile`, `quantise`
- before a server: `machine`, `monitoring`, `rental`, `checkpoint`, `staging`, `nodes`, `prepare`, `ready`, `coverage`,
  `argument_check`, `kernels`, `tuning`, `caches`
- a server: `up` (by an `up_request`), `bring_up`, `restart`, `status`, `top`, `ask`, `logs`, `proof`, `probe`, `down`,
  `ending`; behind a gateway: `several`; all: `servers`, `runs`
- one that is looked after: `watch`, `vigil`, `standing`, `alerts`, `healing`, `healer`, `watch_unit`
- servers of the past: `past`, `recorded`, `rollback`, `history`, `diff`, `prune`
- figures: `bench`, `report`, `reproduce`, `bill`; `evals` of `eval_parts`, by `eval_suites` with an
  `eval_forecast` and an `eval_report`
- a better configuration: `sweep`, `sweep_preview`, `sweep_trial`, `sweep_report`, `sweep_winner`
"""
