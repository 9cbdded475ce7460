"""Small workers for tests of rules."""

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.rule import Step

LAYOUT = Layout([6, 0, 2])
AMPLE = 1 << 20


class Descent:
    """Weights under plain gradient descent."""

    def __init__(self, size=LAYOUT.size, rate=1.0):
        self.weights, self.rate = np.zeros(size, np.float32), rate

    def apply(self, gradient):
        self.weights -= np.float32(self.rate) * gradient

    def read(self):
        return self.weights.copy()

    def write(self, weights):
        self.weights = np.array(weights, np.float32)


def step_of(gradient, n_examples=4, loss=1.0, speed=None):
    return Step(np.asarray(gradient, np.float32), n_examples, loss, speed)


class Company:
    """Workers whose messages arrive as soon as `deliver` is called."""

    def __init__(self, rules):
        self.rules, self.replicas = list(rules), [Descent() for _ in rules]
        self.on_their_way: list = []

    def step(self, rank, step, capacity_bytes=AMPLE):
        """One worker's step; what it sends."""
        capacities = {r: capacity_bytes for r in range(len(self.rules)) if r != rank}
        self.rules[rank].begin(self.replicas[rank])
        sent = self.rules[rank].step(self.replicas[rank], step, capacities)
        self.on_their_way += [(rank, outgoing) for outgoing in sent]
        return sent

    def deliver(self):
        for source, outgoing in self.on_their_way:
            self.rules[outgoing.to].take(source, outgoing.message)
        self.on_their_way.clear()

    def weights(self, rank):
        return self.replicas[rank].weights
