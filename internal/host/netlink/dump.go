package netlink

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries bounds the attempts for a dump that changes interrupt. Even if a pod starts each second, a dump of its
// node's links takes a millisecond, so a second attempt is rare.
const dumpTries = 8

// WholeDump repeats a dump that the kernel reports as interrupted by a change (NLM_F_DUMP_INTR of
// Documentation/userspace-api/netlink/intro.rst), because it may lack entries that existed all along. After eight
// attempts it returns netlink.ErrDumpInterrupted.
func WholeDump[T any](dump func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, err
}
