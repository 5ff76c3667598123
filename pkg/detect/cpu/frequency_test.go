package cpu

import (
	"io/fs"
	"slices"
	"syscall"
	"testing"
)

// A group whose processors are all offline answers EBUSY to every read, since Linux 5.19.
func TestAffectedCPUs(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		err  error
		want []int
		bad  bool
	}{
		"two":        {text: "0 1", want: []int{0, 1}},
		"none":       {text: ""},
		"offline":    {err: &fs.PathError{Op: "read", Path: "affected_cpus", Err: syscall.EBUSY}},
		"unreadable": {err: &fs.PathError{Op: "read", Path: "affected_cpus", Err: syscall.EIO}, bad: true},
		"malformed":  {text: "0 x", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			cpus, err := affectedCPUs(test.text, test.err)
			if !slices.Equal(cpus, test.want) || (err != nil) != test.bad {
				t.Errorf("%v, %v", cpus, err)
			}
		})
	}
}
