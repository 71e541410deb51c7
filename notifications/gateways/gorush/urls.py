from django.urls import path

from notifications.gateways.gorush.answers.feedback import receive_feedback

urlpatterns = [path("gorush", receive_feedback, name="gorush_feedback")]
