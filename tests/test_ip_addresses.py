"""Public and private IP addresses are distinguished in every notation."""

import pytest

from dagmaster.ip_addresses import address_in, is_metadata, is_public

pytestmark = pytest.mark.requirement("X2")

PRIVATE = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"]


@pytest.mark.parametrize("ipv4", PRIVATE)
@pytest.mark.parametrize("form", ["{}", "::ffff:{}", "::{}", "64:ff9b::{}"])
def test_an_ipv6_form_of_a_private_ipv4_address_is_not_public(ipv4, form):
    assert not is_public(form.format(ipv4))


@pytest.mark.parametrize("address", ["::", "::1", "fe80::1%eth0", "fd00::1", "fec0::1", "ff02::1", "2002:7f00:1::"])
def test_private_ipv6_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["::ffff:0:8.8.8.8", "64:ff9b:1::808:808", "100::1", "5f00::1"])
def test_unassigned_ipv6_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("ipv4", ["169.254.169.254", "168.63.129.16", "100.100.100.200"])
@pytest.mark.parametrize("form", ["{}", "::ffff:{}", "::{}", "64:ff9b::{}"])
def test_addresses_of_metadata_services_are_recognised_and_not_public(ipv4, form):
    assert is_metadata(form.format(ipv4))
    assert not is_public(form.format(ipv4))
    assert not is_metadata("168.63.129.17")


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700:4700::1111"])
def test_public_addresses_are_public(address):
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "::ffff:127.0.0.1"])
def test_other_notations_of_loopback_are_recognised(host):
    assert str(address_in(host)) == "127.0.0.1"


@pytest.mark.parametrize("host", ["", "example.com", "localhost", "1.example", "256.0.0.1", "::g", "a\0b"])
def test_names_are_not_addresses(host):
    assert address_in(host) is None
