package metrics

import (
	"fmt"
	"net/netip"
)

// CheckAddress returns an error unless address is an IP of the loopback with a port: the agent listens nowhere else.
// A name is refused, since what it resolves to is not decided here.
func CheckAddress(address string) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("metrics address %q: want an IP of the loopback and a port, such as 127.0.0.1:20257: %w",
			address, err)
	}
	if !a.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("metrics address %q: %s is not an IP of the loopback", address, a.Addr())
	}
	return nil
}
