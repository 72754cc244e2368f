"""Query a topic in Spark, from the broker's own files, while the broker serves.

Run it on the broker's host with the Python that has geminga and Spark: `pip install 'geminga[nightly]'`.
"""
import os
import sys

from pyspark.sql import SparkSession

from geminga.storage.jobs.source import register

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)      # for the processes that Spark starts
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
register(spark)

messages = (spark.read.format("geminga")
            .option("data_dir", os.environ.get("GEMINGA_DATA_DIR", "data"))
            .option("topic", sys.argv[1] if len(sys.argv) > 1 else "example-orders")
            .load())
messages.createOrReplaceTempView("messages")

query = "SELECT key, count(*) AS number, max(publish_time) AS newest FROM messages GROUP BY key ORDER BY key"
for row in spark.sql(query).collect():
    print(row.key, row.number, row.newest)

spark.stop()
