package csiregistration

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"
)

// A driver that has just started gets grace, even if the clock is slightly off. A pod whose start lies far in the
// future shows a wrong clock, and would have grace for years.
func TestCSIStartGrace(t *testing.T) {
	s := testCSISettings()
	s.StartGrace = time.Minute
	for name, test := range map[string]struct {
		up    time.Duration
		grace bool
	}{
		"just started":              {time.Second, true},
		"long ago":                  {time.Hour, false},
		"a little in the future":    {-9 * time.Minute, true},
		"ten minutes in the future": {-10 * time.Minute, false},
		"a year in the future":      {-365 * 24 * time.Hour, false},
	} {
		d := csiDriver{Name: fakeName, Kind: csiDriverKind, Pods: []csiPod{{Name: "kube-system/csi-node", Up: test.up}}}
		f, err := evaluateCSIDriver(d, s)
		if grace := err != nil && strings.Contains(err.Error(), "is starting"); grace != test.grace ||
			(f == nil) != test.grace {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

// A socket that vanishes between listing and query is no fault: the next run will show it.
func TestCSISocketHasJustGone(t *testing.T) {
	d := csiDriver{Name: fakeName, Kind: csiDriverKind, Socket: "/r/s.sock", InfoErr: fmt.Errorf("connect: %w",
		fs.ErrNotExist)}
	f, err := evaluateCSIDriver(d, testCSISettings())
	if f != nil || err == nil || !strings.Contains(err.Error(), "has just gone") {
		t.Errorf("%+v, %v", f, err)
	}
}
