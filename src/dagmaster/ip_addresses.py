"""IP addresses as clients parse them, and whether an address is public."""

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
# All public IPv6 addresses are in this network. Others may be translated IPv4 addresses, such as ::ffff:0:127.0.0.1.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Services of a cloud for its own machines, in addition to those at link-local addresses: AWS, Alibaba, Oracle, Azure.
_METADATA = frozenset(map(ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")))

IpAddress = IPv4Address | IPv6Address


def address_in(host: str) -> IpAddress | None:
    """The address that the host of a URL denotes without a lookup; None for a name."""
    if ":" in host:
        try:
            return _embedded(IPv6Address(host))
        except ValueError:
            return None
    try:
        # As the resolver reads it: also 2852039166, 0xa9fea9fe, 0251.0376.0251.0376 and 169.254.43518.
        return IPv4Address(socket.inet_aton(host.rstrip(".")))
    except (OSError, ValueError):
        return None


def is_public(address: IpAddress | str) -> bool:
    """Whether an address, or the IPv4 address that it stands for, is reachable from the internet."""
    address = _ipv4_if_embedded(address)
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast and address not in _METADATA


def is_metadata(address: IpAddress | str) -> bool:
    """Whether an address may be that of a cloud's metadata service, which hands out credentials."""
    address = _ipv4_if_embedded(address)
    return address.is_link_local or address in _METADATA


def _ipv4_if_embedded(address: IpAddress | str) -> IpAddress:
    if isinstance(address, str):
        address = ip_address(address.partition("%")[0])
    return _embedded(address) if isinstance(address, IPv6Address) else address


def _embedded(address: IPv6Address) -> IpAddress:
    """The IPv4 address that an IPv6 address stands for, if it does: mapped, compatible, NAT64, 6to4 or Teredo."""
    if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)
