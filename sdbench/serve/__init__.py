"""Other engines behind the same records: servers of the OpenAI kind, asked over HTTP or started here. No torch.

    dialect   where a server of one kind says what, as data of its YAML
    client    one server: requests that stream, retries, counters, what it is
    pump      so many requests at once from code that waits for none of them
    rounds    what a server counts of its steps, cut where the text ends
    command   the command line of a server that is started
    process   a server that is started: ready, or why it died; and no orphan
    keeper    the process between: when its parent is gone, however, the server goes too

Nothing of this is imported where engine=native. The runner's side is `sdbench/engines/served/`.
"""
