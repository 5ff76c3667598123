package netlink

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries bounds how often a dump is started that changes interrupt. Where a pod starts each second, a dump of its
// node's links takes a millisecond, so that a second one is rare.
const dumpTries = 8

// WholeDump repeats a dump that the kernel calls interrupted by a change (NLM_F_DUMP_INTR of
// Documentation/userspace-api/netlink/intro.rst), and which so may lack what is there all along. After eight of these
// it gives up with netlink.ErrDumpInterrupted.
func WholeDump[T any](dump func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, err
}
