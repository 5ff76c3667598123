package filesystemreadonly

import (
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// The boot of an error is decided once: no later change of the clock changes it.
func TestExt4ErrorsKeepTheirBoot(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	errors := func(count int, sinceBoot bool) *ext4Errors {
		return &ext4Errors{count: count, last: at.Add(time.Duration(count) * time.Second), sinceBoot: sinceBoot}
	}
	for _, test := range []struct {
		name          string
		before, after *ext4Errors // by the clock
		mount         int         // in the second run; in the first it is 20
		want          bool
	}{
		{"the clock went forwards", errors(1, true), errors(1, false), 20, true},
		{"the clock went backwards", errors(1, false), errors(1, true), 20, false},
		{"one more, and the clock went forwards", errors(1, false), errors(2, false), 20, true},
		{"another filesystem", errors(1, true), errors(1, false), 21, false},
		{"checked meanwhile", errors(1, true), errors(0, false), 20, false},
		{"nothing new", errors(0, false), errors(0, false), 20, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := &ext4State{}
			state.settle([]examined{{Filesystem: filesystem.Filesystem{Device: "8:1", Principal: mount.Mount{ID: 20}},
				ext4: test.before}})
			state.settle([]examined{{Filesystem: filesystem.Filesystem{Device: "8:1",
				Principal: mount.Mount{ID: test.mount}}, ext4: test.after}})
			if got := test.after.sinceBoot; got != test.want {
				t.Errorf("of this boot: %v, want %v", got, test.want)
			}
		})
	}
}
