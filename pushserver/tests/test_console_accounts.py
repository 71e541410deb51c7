"""Management of accounts: an admin cannot raise anybody to a superuser."""

import re

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from django_otp.plugins.otp_totp.models import TOTPDevice

from tests.rig.rows import make_staff

pytestmark = pytest.mark.django_db


@pytest.fixture
def manager(client):
    person = make_staff("admin", "maria")
    client.force_login(person)
    return person


def change(client: Client, account: User, **fields: str) -> int:
    dates = {"date_joined_0": "2026-11-21", "date_joined_1": "10:00"}
    form = {"username": account.username, "is_active": "on", "is_staff": "on", **dates, **fields}
    return client.post(reverse("admin:auth_user_change", args=[account.pk]), form).status_code


def test_an_admin_cannot_make_itself_a_superuser_or_give_itself_permissions(client, manager):
    everything = str(Permission.objects.get(codename="delete_user").pk)

    status = change(client, manager, is_superuser="on", user_permissions=everything, first_name="Maria")

    manager.refresh_from_db()
    assert (status, manager.first_name) == (302, "Maria")
    assert not manager.is_superuser
    assert not manager.user_permissions.exists()


@pytest.mark.parametrize("page", ["change", "delete", "password"])
def test_an_admin_cannot_take_over_the_account_of_a_superuser(client, manager, page):
    root = User.objects.create_superuser("root", password="a long one of its own")
    address = reverse("admin:auth_user_change", args=[root.pk])
    pages = {"change": address, "delete": reverse("admin:auth_user_delete", args=[root.pk])}
    form = {"post": "yes", "username": "root", "password1": "maria knows this", "password2": "maria knows this"}

    response = client.post(pages.get(page, address.replace("change", "password")), form)

    root.refresh_from_db()
    assert response.status_code == 403
    assert root.check_password("a long one of its own")


@pytest.mark.parametrize(
    ("role", "is_superuser", "from_list", "status"),
    [
        ("admin", True, False, 403),
        ("admin", True, True, 403),
        ("admin", False, False, 302),
        ("admin", False, True, 302),
        ("superuser", True, False, 302),
    ],
)
def test_an_admin_removes_the_second_factor_of_anybody_but_a_superuser(
    client, manager, role, is_superuser, from_list, status
):
    owner = User.objects.create_user("otto", is_staff=True, is_superuser=is_superuser)
    device = TOTPDevice.objects.create(user=owner, name="authenticator", confirmed=True)
    if role == "superuser":
        client.force_login(User.objects.create_superuser("root"))
    page, form = reverse("admin:otp_totp_totpdevice_delete", args=[device.pk]), {"post": "yes"}
    if from_list:
        page = reverse("admin:otp_totp_totpdevice_changelist")
        form |= {"action": "delete_selected", "_selected_action": str(device.pk)}

    assert client.post(page, form).status_code == status
    assert TOTPDevice.objects.exists() == (status == 403)


ADD = "/admin/auth/user/add/"
NEW = {"username": "bob", "password1": "correct horse battery staple", "password2": "correct horse battery staple"}


def test_an_account_is_made_on_one_page_with_a_role_that_the_list_and_its_page_show(client, manager):
    role = Group.objects.get(name="operator")
    page = client.get(ADD).content.decode()
    assert "more user options" not in page
    assert not re.search(r"<select[^>]* multiple", page)

    assert client.post(ADD, NEW | {"role": str(role.pk)})["Location"] == ADD.replace("add/", "")

    bob = User.objects.get(username="bob")
    assert (bob.is_staff, bob.is_superuser, [*bob.groups.all()]) == (True, False, [role])
    assert Client().post("/admin/login/", {"username": "bob", "password": NEW["password1"]}).status_code == 302
    listed = client.get(ADD.replace("add/", "")).content.decode()
    assert re.findall(r"field-role[^>]*>\s*([a-z]+)", listed) == ["operator", "admin"]
    page = client.get(reverse("admin:auth_user_change", args=[bob.pk])).content.decode()
    assert "Can add" not in page
    assert re.findall(r'<input[^>]* name="groups" value="(\d+)"[^>]* checked[ >]', page) == [str(role.pk)]


@pytest.mark.parametrize("wrong", [{"role": ""}, {"password2": "another"}, {"password1": "", "password2": ""}])
def test_an_account_needs_a_role_and_two_equal_passwords(client, manager, wrong):
    role = str(Group.objects.get(name="operator").pk)
    assert 'class="errorlist' in client.post(ADD, NEW | {"role": role} | wrong).content.decode()
    assert not User.objects.filter(username="bob").exists()


def test_a_superuser_may_make_another_and_narrow_down_accounts_by_their_filters(admin_client):
    account = User.objects.create_user("otto", is_staff=True)
    assert change(admin_client, account, is_superuser="on") == 302
    account.refresh_from_db()
    assert account.is_superuser
    for name in ("is_staff__exact=1", "groups__id__exact=1", "is_superuser__isnull=True"):
        assert admin_client.get(f"{reverse('admin:auth_user_changelist')}?{name}").status_code == 200
