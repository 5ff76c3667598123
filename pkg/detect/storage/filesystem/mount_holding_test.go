package filesystem

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// A path is on the deepest mount above it, by complete names, and on the last of several at one point.
func TestMountHolding(t *testing.T) {
	mounts := []mount.Mount{{ID: 1, Point: "/"}, {ID: 2, Point: "/var"}, {ID: 3, Point: "/var/lib"}, {ID: 4, Point: "/var"}}
	for name, want := range map[string]int{"/": 1, "/etc/fstab": 1, "/variable": 1, "/var": 4, "/var/": 4, "/var/log": 4,
		"/var/lib/x": 3, "/var/library": 4, "/var/lib/../log": 4, "": 0, "swap": 0} {
		if got, ok := MountHolding(mounts, name); got.ID != want || ok != (want != 0) {
			t.Errorf("%q: mount %d, %t, want %d", name, got.ID, ok, want)
		}
	}
}
