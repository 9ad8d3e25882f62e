"""Other engines behind the same records: servers of the OpenAI kind, over HTTP or started here. No torch.

    dialect     where a server of one kind reports what, as data of its YAML
    client      one server: streamed requests, retries, counters
    pump        many requests at once from code that does not wait
    rounds      the rounds that a server reports, cut where the text ends
    command     the command line of a server that is started
    process     a server that is started: ready, or why it died
    supervisor  the process between: when its parent is gone, it ends the server

Nothing of this is imported where engine=native. The runner's side is `sdbench/engines/served/`.
"""
