package load

import (
	"testing"
)

// TestBlockedTasksMustShowInTheLoad: tasks blocked during one scan only are no fault. Only the load of five minutes, or
// an earlier scan, proves that they have been blocked for long.
func TestBlockedTasksMustShowInTheLoad(t *testing.T) {
	s := DefaultSettings()
	for _, test := range []struct {
		name string
		seen LoadSeen
		want bool
	}{
		{"in one scan", LoadSeen{CPUs: 64, Load5: 2, Blocked: 50}, false},
		{"the load shows them", LoadSeen{CPUs: 64, Load5: 48, Blocked: 50}, true},
		{"an earlier scan has seen them", LoadSeen{CPUs: 64, Load5: 2, Blocked: 50, BlockedLong: 50}, true},
		{"the load is of others", LoadSeen{CPUs: 64, Load5: 48, Blocked: 1}, false},
	} {
		found := false
		for _, f := range test.seen.evaluate(s) {
			found = found || f.reason == "BlockedTasks"
		}
		if found != test.want {
			t.Errorf("%s: found %v, want %v", test.name, found, test.want)
		}
	}
}
