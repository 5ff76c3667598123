package kinds_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// What containerd made for a container in /run is a leftover once its pod and the container are gone; of a container
// unknown to all it is unowned.
func TestRunFiles(t *testing.T) {
	n := newNode(t)
	state := n.Host.Paths.ContainerdState
	id := func(c string) string { return strings.Repeat(c, 64) }
	for _, c := range []string{"a", "b", "c"} {
		dir := n.Mkdir(state, "io.containerd.grpc.v1.cri/containers", id(c), "io/1")
		write(t, filepath.Join(dir, id(c)+"-stdout"), "")
	}
	n.Mkdir(state, "io.containerd.grpc.v1.cri/containers/other")
	write(t, filepath.Join(n.Mkdir(state, "fifo/17"), id("d")+"-stderr"), "")
	write(t, filepath.Join(n.Mkdir(state, "fifo/18"), "of-ctr-stdin"), "")
	n.Mkdir(state, "fifo/19")
	n.Sandbox(living, sandbox)
	n.Containers = append(n.Containers, &cri.Container{Id: id("a"), Labels: map[string]string{witness.UIDLabel: living}})
	n.Cgroups(n.Host.Paths.CgroupRoot + "/kubepods/pod" + dead + "/" + id("b"))
	report := n.ripen(t, object.History{}, n.inspector())
	inspecttest.NoErrors(t, report)
	want := map[string]object.Verdict{"a": object.Live, "b": object.Leftover, "c": object.Unowned, "17": object.Unowned}
	ids := map[string]string{"a": id("a"), "b": id("b"), "c": id("c"), "17": "fifo/17", "18": "fifo/18", "19": "fifo/19",
		"other": "containers/other"}
	if diff := cmp.Diff(want, of(report, object.RunFile, ids)); diff != "" {
		t.Errorf("%s\n%s", diff, inspecttest.Whys(report, dead))
	}
}
