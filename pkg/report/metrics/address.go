package metrics

import (
	"fmt"
	"net/netip"
)

// CheckAddress returns an error unless address is a loopback IP with a port: the agent listens nowhere else. It rejects
// a name, since the resolver decides which address that is.
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
