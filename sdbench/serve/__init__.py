"""Clients of OpenAI-compatible servers, which are already running or are started here. Nothing here imports torch.

    dialect     which field of an answer holds which fact, for each kind of server; read from its YAML file
    answer      reads the chunks of one streamed answer
    client      a client of one server: streamed requests, retries, counters
    pump        sends many requests concurrently for synchronous code
    rounds      computes the rounds of a text from the counts that a server reports
    file_limit  raises the limit on open files for many concurrent requests
    command     the command line that starts a server
    process     a started server: waits until it is ready, and says why it ended
    supervisor  a process between sdbench and the server that ends the server when sdbench is gone
    plugin      checks the vLLM of an interpreter, and whether our plug-in supports it

With engine=native none of these modules is imported. The code that uses them is `sdbench/engines/served/`.
"""
