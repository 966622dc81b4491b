"""What the shop sells."""

from django.db import models


class Order(models.Model):
    """A book that was ordered. Its intent is noted, so that one can look it up after a crash."""

    title = models.CharField(max_length=200)
    intent = models.CharField(max_length=255, unique=True)

    def __str__(self) -> str:
        return f"order {self.pk}: {self.title}"
