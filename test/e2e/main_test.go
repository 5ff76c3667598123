// Package e2e tests the agent on a real node: kubelet, apiserver, containerd, filesystems that fail.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/test/lab"
)

var asDaemonSet = flag.Bool("daemonset", false, "install the agent as the DaemonSet instead of a process of the host")

var containerd = flag.String("containerd", "",
	"run this containerd in the lab: 1 for Debian's 1.6, 2 for a current one")

var crio = flag.Bool("crio", false, "run CRI-O in the lab instead of containerd")

var users = flag.Bool("users", false, "run containerd 2 in the lab with a runc for pods with users of their own")

var long = flag.Bool("long", false, "run the tests too that wait for minutes")

var join = flag.String("join", "", "folder of the control plane of which this emulated machine is the node: see "+
	"test/guest")

var agents = flag.String("agents", "", "folder with the agents that are built already")

var withLab = flag.Bool("lab", false,
	"bring up a real one-node cluster for these tests, and remove it after; needs root")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// builds is the directory for the tests' programs, each built once.
var builds string

// run brings up the lab if it is wanted and not running. Without it every test skips by name.
func run(m *testing.M) (code int) {
	if !*withLab {
		return m.Run()
	}
	ctx := context.Background()
	var err error
	if builds, err = os.MkdirTemp("", "nodeagent-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(builds)
	before, _ := lab.Open("")
	l, err := lab.Up(ctx, lab.Options{Containerd: *containerd, CRIO: *crio, Users: *users, Join: *join, Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if before == nil && *join == "" { // an emulated machine ends as a whole
		defer func() {
			if err := l.Down(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
	}
	return m.Run()
}
