package agent

import (
	"io/fs"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
)

// After its start, kubelet may have registered another Node of the same name: the Node is read soon, although no
// is wrong. While it does not run, and after the Node was seen, there is no reason.
func TestNodeIsReadAfterKubeletHasStarted(t *testing.T) {
	var process host.Process
	var err error
	k := kubeletLife{process: func() (host.Process, error) { return process, err }}
	expect := func(when string, want bool) {
		t.Helper()
		if got := k.isNew(); got != want {
			t.Errorf("%s: %t, want %t", when, got, want)
		}
	}
	err = fs.ErrNotExist
	k.saw()
	expect("no kubelet was ever seen", false)
	process, err = host.Process{PID: 7, StartTime: 100}, nil
	expect("it has started", true)
	expect("and the Node was not seen since", true)
	k.saw()
	expect("the Node was seen", false)
	err = fs.ErrNotExist
	expect("it has ended", false)
	process, err = host.Process{PID: 7, StartTime: 200}, nil
	expect("another one has its PID", true)
	none := kubeletLife{}
	if none.saw(); none.isNew() {
		t.Error("no kubelet is known")
	}
}
