"""Where the view is."""

from django.urls import path

from bookshop.views import orders

urlpatterns = [path("orders", orders)]
