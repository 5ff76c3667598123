package deliver

import "net/netip"

// Permits is for the tests.
func Permits(t Target, a netip.Addr) bool { return t.permits(a) }
