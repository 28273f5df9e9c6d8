"""Feature extractors: plain modules x → h with `out_features` and `config`."""

from due.networks.fc_resnet import FCResNet
from due.networks.feed_forward import FeedForward

__all__ = ["FCResNet", "FeedForward"]
