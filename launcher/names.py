"""Names of runs, such as brave-otter."""

import numpy as np

_ADJECTIVES = """
    able amber ample ardent arctic balmy bold brave breezy bright brisk calm candid cheery civil
    clever cosmic cosy crisp curious dapper daring deft eager early easy fair fleet fond frank fresh
    gentle glad golden grand happy hardy honest humble jolly keen kind lively loyal lucid lucky
    mellow merry mighty misty modest neat nimble noble patient placid plucky polite proud quick
    quiet ready regal robust rosy sage sandy serene sharp silver smart snowy sober solid spry steady
    sunny sure swift tender tidy trusty upbeat valiant vivid warm wise witty young zesty
"""
_ANIMALS = """
    adder alpaca badger beaver bison bobcat bream camel canary caribou cicada cobra condor coral
    cougar coyote crane cricket dingo dolphin donkey eagle egret falcon ferret finch fox gannet
    gazelle gecko gibbon goose grouse hare hawk heron hornet ibex ibis iguana impala jackal jaguar
    kestrel koala lark lemur leopard linnet lion llama lobster lynx magpie marmot marten meerkat
    mink mole moose newt ocelot okapi oriole osprey otter owl panda parrot pelican pika plover
    puffin puma quail rabbit raven robin salmon seal shrew skink sparrow squid stoat stork swan
    tapir tern toad trout turtle viper walrus weasel whale wombat wren yak zebra
"""


def draw_name(rng: np.random.Generator) -> str:
    """One of about 9,000 names."""
    return "-".join(str(rng.choice(words.split())) for words in (_ADJECTIVES, _ANIMALS))
