package filesystem

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

func TestPrincipalOf(t *testing.T) {
	whole := func(id int, point string) mount.Mount { return mount.Mount{ID: id, Root: "/", Point: point} }
	part := mount.Mount{ID: 1, Root: "/volume", Point: "/v"}
	for name, test := range map[string]struct {
		mounts []mount.Mount // in the order of the mount table
		want   string
	}{
		"the whole before a part": {[]mount.Mount{part, whole(2, "/srv/disk")}, "/srv/disk"},
		"the shortest path":       {[]mount.Mount{whole(1, "/srv/disk-again"), whole(2, "/srv/disk")}, "/srv/disk"},
		"the oldest, though a later one was given an ID that had become free": {
			[]mount.Mount{whole(90, "/srv/disk"), whole(40, "/srv/bind"), whole(91, "/srv/more")}, "/srv/disk"},
	} {
		if got := PrincipalOf(test.mounts).Point; got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
