"""What servers push: Push 2.0 and XEP-0357, their forms, and what is encrypted for the device."""
