package storage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMultipath(t *testing.T) {
	for name, test := range map[string]struct {
		status string
		want   map[string]bool // path: has failed
	}{
		"round robin": {"2 0 0 0 1 1 E 0 2 0 8:16 F 1 8:32 A 0",
			map[string]bool{"8:16": true, "8:32": false}},
		"two groups, by service time": {"2 1 0 0 2 1 A 0 1 2 8:16 A 0 0 1 E 0 1 2 8:32 F 9 0 1",
			map[string]bool{"8:16": false, "8:32": true}},
		"no path":          {"2 0 0 0 0 0", map[string]bool{}},
		"empty":            {"", nil},
		"ends early":       {"2 0 0 0 1 1 E 0 2 0 8:16 F 1", nil},
		"goes on":          {"2 0 0 0 1 1 E 0 1 0 8:16 F 1 8:32", nil},
		"another state":    {"2 0 0 0 1 1 E 0 1 0 8:16 X 1", nil},
		"a negative count": {"2 0 0 0 -1 1 E 0 1 0 8:16 F 1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseMultipath(test.status)
			if diff := cmp.Diff(test.want, got); diff != "" || err == nil != (test.want != nil) {
				t.Errorf("(-want +got):\n%s%v", diff, err)
			}
		})
	}
}

func FuzzMultipaths(f *testing.F) {
	f.Add("253:0\t2 0 0 0 1 1 E 0 2 0 8:16 F 1 8:32 A 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		if disks, err := parseMultipaths(text); err == nil == (disks == nil) {
			t.Errorf("%v, %v", disks, err)
		}
	})
}
