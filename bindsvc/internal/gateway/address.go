package gateway

import (
	"errors"
	"net/netip"
)

var errNoPrefix = errors.New("want an address or a CIDR prefix")

// ParsePrefix reads an address or a CIDR prefix; 10.0.0.7 stands for 10.0.0.7/32. IPv4
// in IPv6 becomes IPv4, as which addresses are compared.
func ParsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if address, addressErr := netip.ParseAddr(text); err != nil && addressErr == nil {
		address = address.Unmap().WithZone("")
		prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
	}
	if err != nil {
		return netip.Prefix{}, errNoPrefix
	}
	if address := prefix.Addr(); address.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(address.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), nil
}

// Subnet is what one client has of an address: an IPv4 address, an IPv6 network (/64).
func Subnet(address netip.Addr) string {
	if address.Is6() {
		if network, err := address.Prefix(64); err == nil {
			return network.String()
		}
	}
	return address.String()
}
