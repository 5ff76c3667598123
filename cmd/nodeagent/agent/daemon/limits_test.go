package daemon

import "testing"

// At rest, half of the live heap is free or garbage all the time: no collection is forced for that. The rest of a start or
// of a pass is given back.
func TestExcessiveHeap(t *testing.T) {
	for name, test := range map[string]struct {
		heap
		want bool
	}{
		"just collected, at rest":     {heap{free: 5 << 20, objects: 9 << 20, live: 9 << 20}, false},
		"soon to be collected":        {heap{free: 1 << 20, objects: 13 << 20, live: 9 << 20}, false},
		"after a pass: free":          {heap{free: 20 << 20, objects: 9 << 20, live: 9 << 20}, true},
		"after a pass: not collected": {heap{free: 1 << 20, objects: 28 << 20, live: 9 << 20}, true},
		"allocated while read":        {heap{free: 1 << 20, objects: 8 << 20, live: 9 << 20}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.excessive(); got != test.want {
				t.Errorf("%t", got)
			}
		})
	}
}
