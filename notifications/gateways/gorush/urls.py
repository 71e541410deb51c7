from django.urls import path

from notifications.gateways.gorush.feedback import receive_feedback

urlpatterns = [path("gorush", receive_feedback, name="gorush_feedback")]
