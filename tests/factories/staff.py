"""Staff of the console."""

from django.contrib.auth.models import Group, User


def make_staff(role: str, name: str = "") -> User:
    """Make an account with this role, which is also its name unless there is another one."""
    user = User.objects.create_user(name or role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    return user
