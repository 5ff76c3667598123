package inspect

import (
	"errors"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// A kubelet that does not run shows no cgroupRoot: the processes of our own pods may be those in a tree that looks like
// another kubelet's. They are unknown then, and foreign only if our tree is known.
func TestTreeOfAKubeletThatDoesNotRun(t *testing.T) {
	down := func() (host.Process, error) { return host.Process{}, errors.New("no kubelet runs") }
	for name, test := range map[string]struct {
		root    string
		kubelet func() (host.Process, error)
		unknown bool
	}{
		"it runs":                         {"/", func() (host.Process, error) { return host.Process{PID: 7}, nil }, false},
		"it is down, and no path is set":  {"/", down, true},
		"it is down, and the path is set": {"/lab", down, false},
	} {
		scan := &hostscan.Scan{Host: hosttest.Host(t), Kubelet: test.kubelet,
			Processes: func() (hostscan.ProcessTable, error) {
				return hostscan.ProcessTable{Nested: []hostscan.PodProcess{{Cgroup: "/lab2/kubepods/podx"}}}, nil
			}}
		scan.Host.Paths.CgroupRoot = test.root
		objects, err := listProcesses(t.Context(), scan)
		if err != nil || len(objects) != 1 {
			t.Fatal(objects, err)
		}
		if o := objects[0]; (o.Doubt != "") != test.unknown || (o.Foreign != "") == test.unknown {
			t.Errorf("%s: foreign %q, in doubt %q", name, o.Foreign, o.Doubt)
		}
	}
}
