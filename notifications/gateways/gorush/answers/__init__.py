"""What gorush answers: errors by rules, feedback from its hook, and texts without anything of one device."""
