"""A load on a broker, and its figures: the generator of `geminga bench` and of the benchmarks.

    plan.py        what is put on a broker, and numbers that all processes of a load share
    wire.py        bytes of the protocol, written and found as arrays
    blocks.py      SEND frames that carry the time at which they were due
    link.py        a connection
    producer.py, consumer.py   the loops of one connection
    real_client.py the same loops by the library pulsar-client
    latencies.py   counts of latencies, and their percentiles
    running.py     processes, warm-up, measurement, end

Every message carries the time at which it was due in the property `geminga.bench`.  A latency counts from that time,
so a broker that holds up its producers is not flattered.

Imports: `configuration` and `pulsar_client`; wire.py and link.py nothing of ours, so that a mistake in the broker's
code cannot hide in them.  Start with `running.py`.
"""
