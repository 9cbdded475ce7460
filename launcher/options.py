"""The command line's options, each declared once and shared by the commands."""

from typing import Annotated

from typer import Argument, Option

MONEY, CLUSTER, TRAINING, OUTPUT = "Money and time", "Cluster and workers", "Training", "Output"
DATA = "Data"

Script = Annotated[
    str, Argument(metavar="SCRIPT", help="A Keras script. Its own arguments go after --.")
]
AnyScript = Annotated[
    str | None, Argument(metavar="SCRIPT", help="The script that is to be trained.")
]
Extra = Annotated[list[str] | None, Argument(metavar="-- ARGS", hidden=True)]
RunName = Annotated[str, Argument(metavar="RUN", help="The run's name, as `launch runs` shows it.")]
ClusterFile = Annotated[
    str, Argument(metavar="FILE", help="A Ray cluster file, such as cluster.yaml.")
]
Budget = Annotated[
    str | None,
    Option(
        metavar="USD", help="At most so many dollars for this run: 5, $5.", rich_help_panel=MONEY
    ),
]
Deadline = Annotated[
    str | None, Option(metavar="TIME", help="At most so long: 30m, 1h30m.", rich_help_panel=MONEY)
]
Objective = Annotated[
    str | None,
    Option(metavar="time|cost", help="What to make small. Default: time.", rich_help_panel=MONEY),
]
Price = Annotated[
    str | None,
    Option(
        metavar="USD_PER_H",
        help="What an hour of each node costs. Default: by label or table.",
        rich_help_panel=MONEY,
    ),
]
Explore = Annotated[
    str | None,
    Option(
        metavar="SHARE",
        help="Share of the budget that may be put at stake to learn. Default: 2%.",
        rich_help_panel=MONEY,
    ),
]
Workers = Annotated[
    str | None,
    Option(metavar="auto|N", help="How many workers. Default: auto.", rich_help_panel=CLUSTER),
]
MaxWorkers = Annotated[
    str | None, Option(metavar="N", help="At most so many workers.", rich_help_panel=CLUSTER)
]
Strategy = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="How gradients are exchanged: auto (the default), allreduce, direct, or "
        "decentralized, which changes the learning curve.",
        rich_help_panel=CLUSTER,
    ),
]
Parallelism = Annotated[
    str | None,
    Option(
        metavar="data|model|auto",
        help="Workers share the data, or train one model in stages. Default: data.",
        rich_help_panel=CLUSTER,
    ),
]
CpusPerWorker = Annotated[
    str | None,
    Option(
        metavar="C", help="CPUs of one worker. Default: all of a node.", rich_help_panel=CLUSTER
    ),
]
GpusPerWorker = Annotated[
    str | None,
    Option(
        metavar="G", help="GPUs of one worker. Default: one on GPU nodes.", rich_help_panel=CLUSTER
    ),
]
Address = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT|URL",
        help="The Ray cluster; http://HEAD:8265, its dashboard, from afar. Default: RAY_ADDRESS, "
        "else the one running here, else a new one.",
        rich_help_panel=CLUSTER,
    ),
]
Cluster = Annotated[
    str | None,
    Option(
        "--cluster",
        metavar="FILE",
        help="The cluster of a Ray cluster file, from afar. To train there it is brought up if "
        "needed, and the results come home.",
        rich_help_panel=CLUSTER,
    ),
]
DownWhenDone = Annotated[
    bool | None,
    Option(
        "--down-when-done",
        metavar="",
        help="With --cluster: take it down when the results are home.",
        rich_help_panel=CLUSTER,
    ),
]
Wait = Annotated[
    str | None,
    Option(
        metavar="TIME",
        help="Wait so long for nodes that other jobs hold: 10m. Default: not at all.",
        rich_help_panel=CLUSTER,
    ),
]
CheckpointEvery = Annotated[
    str | None,
    Option(
        metavar="TIME",
        help="Time between checkpoints in mid-epoch. Default: as their cost allows.",
        rich_help_panel=TRAINING,
    ),
]
SyncBatchnorm = Annotated[
    bool | None,
    Option(
        "--sync-batchnorm",
        metavar="",
        help="Batch normalisation over all workers' rows under direct, too.",
        rich_help_panel=TRAINING,
    ),
]
AllowApproximate = Annotated[
    bool | None,
    Option(
        "--allow-approximate",
        metavar="",
        help="Let auto choose decentralized where the same accuracy is reached sooner.",
        rich_help_panel=CLUSTER,
    ),
]
MaxStaleness = Annotated[
    str | None,
    Option(
        metavar="N|none",
        help="decentralized: oldest gradients to apply, in steps. Default: 64.",
        rich_help_panel=TRAINING,
    ),
]
TransferEvery = Annotated[
    str | None,
    Option(
        metavar="STEPS",
        help="decentralized: how often workers behind look for better weights. Default: 100.",
        rich_help_panel=TRAINING,
    ),
]
TransferPart = Annotated[
    str | None,
    Option(
        metavar="SHARE",
        help="decentralized: the part of better weights that they take over. Default: 75%.",
        rich_help_panel=TRAINING,
    ),
]
Seed = Annotated[
    str | None,
    Option(
        metavar="S",
        help="Of the script's random generators. Default: drawn.",
        rich_help_panel=TRAINING,
    ),
]
MaxFolder = Annotated[
    str | None,
    Option(
        metavar="SIZE", help="Largest folder to ship. Default: 500MiB.", rich_help_panel=TRAINING
    ),
]
Data = Annotated[
    list[str] | None,
    Option(
        "--data",
        metavar="URI",
        help="Folder or file, s3://, gs:// or https://, that the script finds in "
        "$LAUNCH_DATA_DIR. May be given several times. Under decentralized also SITE=URI, for "
        "nodes with the label launch/site=SITE.",
        rich_help_panel=DATA,
    ),
]
DataPrice = Annotated[
    str | None,
    Option(
        metavar="USD_PER_GB",
        help="What the data's provider charges on their way out. Default: by a table.",
        rich_help_panel=DATA,
    ),
]
Cache = Annotated[
    str | None,
    Option(
        metavar="DIR",
        help="Folder for data on every node. Default: ~/.launch/data.",
        rich_help_panel=DATA,
    ),
]
CacheSize = Annotated[
    str | None,
    Option(
        metavar="SIZE",
        help="At most so much in it: 50GB. Default: what the disk has.",
        rich_help_panel=DATA,
    ),
]
StorageUri = Annotated[
    str | None,
    Option(
        "--storage",
        metavar="URI",
        help="Folder or s3://… for records, checkpoints and models. Default: ~/launch.",
        rich_help_panel=OUTPUT,
    ),
]
Name = Annotated[
    str | None, Option(metavar="N", help="The run's name. Default: drawn.", rich_help_panel=OUTPUT)
]
DryRun = Annotated[
    bool | None,
    Option(
        "--dry-run",
        metavar="",
        help="Measure and decide, but do not train.",
        rich_help_panel=OUTPUT,
    ),
]
Detach = Annotated[
    bool | None,
    Option(
        "--detach",
        metavar="",
        help="Go on in the cluster without this terminal, once training has begun.",
        rich_help_panel=OUTPUT,
    ),
]
Yes = Annotated[
    bool | None,
    Option(
        "--yes", "-y", metavar="", help="Answer every question with yes.", rich_help_panel=OUTPUT
    ),
]
Json = Annotated[
    bool | None,
    Option(
        "--json",
        metavar="",
        help="Print the result as JSON and nothing else.",
        rich_help_panel=OUTPUT,
    ),
]
