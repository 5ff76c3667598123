package netlink_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	hostnetlink "github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestWholeDump(t *testing.T) {
	t.Parallel()
	var dumps int
	interrupted := func(times int) func() ([]int, error) {
		dumps = 0
		return func() ([]int, error) {
			if dumps++; dumps <= times {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, nil
		}
	}
	for _, times := range []int{0, 1, 7} {
		if all, err := hostnetlink.WholeDump(interrupted(times)); !slices.Equal(all, []int{1, 2}) || err != nil {
			t.Errorf("after %d that were interrupted: %v, %v", times, all, err)
		}
	}
	if all, err := hostnetlink.WholeDump(interrupted(1 << 20)); all != nil || !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("each was interrupted: %v, %v; half a list is none", all, err)
	}
	if dumps > 100 {
		t.Errorf("%d dumps without an end", dumps)
	}
	refused := errors.New("refused")
	dumps = 0
	_, err := hostnetlink.WholeDump(func() ([]int, error) { dumps++; return nil, refused })
	if !errors.Is(err, refused) || dumps != 1 {
		t.Errorf("refused: %v after %d dumps", err, dumps)
	}
}
