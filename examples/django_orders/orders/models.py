"""The models, stored in SQLite."""

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    price = models.IntegerField()
    mailed = models.BooleanField(default=False)
